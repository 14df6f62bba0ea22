"""One attack of the study: a run of a strategy, or what takes several runs."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Strategy, load_strategy, simulate
from flwr_vertical.errors import VerticalError
from simulations.attacks import routing, several
from simulations.attacks.cases import (
    PARTIES,
    ROWS,
    Case,
    cases,
    fit,
    make_case_tables,
    make_strategy_of,
    routed_cases,
)
from simulations.attacks.deviating import OUTCOMES, deviate
from simulations.attacks.labels import columns_from, labels_from
from simulations.attacks.recording import record
from simulations.attacks.suite import LABELS, attack_run, smallest_opened
from simulations.attacks.views import SERVER, aligned_truth, views_of
from simulations.replications import Job, Metrics
from strategies import BUILTIN
from strategies.fknn import FKNN

REFUSED = "refused"
SEPARATOR = "|"


def replicate(job: Job, shared: Any) -> Metrics:
    """Carry out one job of the study."""
    return PARTS[job.part](job.settings)


def _grid(settings: dict[str, Any]) -> Metrics:
    """Attack one run: for each view and attack, the cells, columns and what outputs allow."""
    try:
        run = record(*_made(settings), settings["mode"])
    except VerticalError:
        if settings["mode"] == "ckks":  # some methods do not offer it, and say so
            return {REFUSED: 1.0}
        raise
    found = {}
    for finding in attack_run(run):
        key = f"{finding.view}{SEPARATOR}{finding.attack}{SEPARATOR}"
        found[key + "cells"] = finding.cells
        found[key + "columns"] = float(finding.columns)
        found[key + "allowed"] = finding.allowed
    smallest = smallest_opened(run)
    return found | ({} if smallest is None else {"smallest set": float(smallest)})


def _labels(settings: dict[str, Any]) -> Metrics:
    """Guess labels at each party, of as many samples as tell a small gain from luck."""
    run = record(*_made(settings))
    views = views_of(run)
    truth = views[SERVER].labels
    assert truth is not None
    told = [labels_from(views[party], truth) for party in views[SERVER].parties]
    return {"own": max(found.own for found in told), "gain": max(found.gain for found in told)}


def _rough(settings: dict[str, Any]) -> Metrics:
    """Learn others' columns from numbers of single samples, half of the samples known."""
    run = record(*_made(settings), settings["mode"])
    views = views_of(run)
    truth = aligned_truth(run, views[SERVER].positions)
    parties = [columns_from(views[name], truth) for name in views[SERVER].parties]
    most = max(parties, key=lambda told: told.gain)
    at_server = columns_from(views[SERVER], truth)
    return {"server": at_server.all, "own": most.own, "party": most.all}


def _routed(settings: dict[str, Any]) -> Metrics:
    """Work out of the sides of splits, and of gains, what they tell to whom."""
    case = case_named(settings["case"])
    if case.settings:  # not of predictions
        case = replace(case, settings={**case.settings, "n_trees": settings["trees"]})
    tables, labels = make_case_tables(case, settings["rows"], settings["parties"], settings["seed"])
    trees = routing.record_trees(make_strategy_of(case, tables, labels), tables, labels)
    found = {}
    cells = [finding for finding in attack_run(trees.run) if finding.attack != LABELS]
    found["server cells"] = max(f.cells for f in cells if f.view == SERVER)
    found["party cells"] = max(f.cells for f in cells if f.view != SERVER)
    found["bits"], found["of bits"], found["codes"] = routing.bits_told(trees)
    if trees.levels:  # trees were grown
        found["blind"], found["known"] = routing.labels_guessed(trees)
        found["model"] = trees.run.result.metrics["train_auc"]
    if trees.compared:
        found["sign"], found["correlation"], found["chance"], _ = routing.seen_by_arbiter(trees)
    elif trees.levels:
        found["bins"] = routing.bins_recovered(trees)
    return found


def _deviating(settings: dict[str, Any]) -> Metrics:
    """Try at every message of a run what else a server could send in its place."""
    try:
        tries = deviate(*_made(settings), settings["mode"], min_rows=20)
    except VerticalError:
        if settings["mode"] == "ckks":
            return {REFUSED: 1.0}
        raise
    found = tries.count()
    return {
        "tries": float(len(tries.made)),
        **{outcome: float(found[outcome].sum()) for outcome in OUTCOMES},
        "cells": float(found["cells found"].sum()),
        "masked alike": float(len({*tries.masked_alike})),
    }


def _other_labels(settings: dict[str, Any]) -> Metrics:
    """Repeat honest runs with invented labels."""
    tables, _ = _complete_tables(settings)
    strategy = load_strategy(BUILTIN["complete-case"])()
    return {
        f"{tolerance:g}": several.runs_with_other_labels(
            strategy, tables, settings["repeated"], tolerance
        ).cells
        for tolerance in (1e-3, 1e-2, 1e-1)
    }


def _one_label_less(settings: dict[str, Any]) -> Metrics:
    """Take a label away between two runs."""
    tables, labels = _complete_tables(settings)
    strategy = load_strategy(BUILTIN["complete-case"])()
    found, smallest = several.runs_with_one_label_less(strategy, tables, labels)
    with tempfile.TemporaryDirectory() as folder:
        refusal = several.refused_with_one_label_less(strategy, tables, labels, Path(folder))
    return {"cells": found.cells, "refused by ledgers": float("policy.min-rows" in refusal)} | (
        {} if smallest is None else {"rows": float(smallest)}
    )


def _chosen_model(settings: dict[str, Any]) -> Metrics:
    """Ask for predictions by a model of the server's choice."""
    tables, labels = _complete_tables(settings)
    kind: Any = load_strategy(BUILTIN["predict"])
    fitted = fit(tables, labels)
    return {"cells": several.chosen_model(lambda model: kind(model=model), fitted, tables).cells}


def _flag_predictions(settings: dict[str, Any]) -> Metrics:
    """Try all rows of flags for a prediction: what the outputs alone tell."""
    n, n_flags = settings["rows"], settings["flags"]
    rng = np.random.default_rng([settings["seed"], n_flags])
    ids = [f"c{i:04}" for i in range(n)]
    tables = {
        name: pd.DataFrame(
            (rng.random((n, n_flags // 2)) < 0.4).astype(float),
            index=ids,
            columns=[f"{name}.{j}" for j in range(n_flags // 2)],
        )
        for name in PARTIES[:2]
    }
    score = sum(table @ rng.normal(size=n_flags // 2) for table in tables.values())
    labels = pd.Series(np.asarray(score) + rng.normal(size=n), index=ids)
    labels.iloc[2 * n // 3 :] = np.nan
    found = simulate(load_strategy(BUILTIN["complete-case"])(), tables, labels, progress=False)
    assert found.coefficients is not None
    assert found.predictions is not None
    estimates = found.coefficients["estimate"]
    at_server = estimates.index.get_level_values(0) == "server"
    told = found.predictions["prediction"]
    truth = pd.concat(tables.values(), axis=1).loc[told.index].to_numpy()
    share = several.flags_from_predictions(
        told.to_numpy(), estimates[~at_server].to_numpy(), truth, float(estimates[at_server].sum())
    )
    return {"cells": share}


def _scales(settings: dict[str, Any]) -> Metrics:
    """Seek the scales of rows of distances where three rows meet."""
    case = case_named("fknn")
    tables, labels = make_case_tables(case, 40, 3, settings["seed"])
    told: Strategy = FKNN(weights="distance")
    consent = {"exchanges": "distances"}
    return {
        "found": float(several.scales_found(make_strategy_of(case, tables, labels), tables)),
        "consented": float(several.scales_found(told, tables, policy=consent)),
    }


def _synthetic(settings: dict[str, Any]) -> Metrics:
    """Guess about people in the data of a synthetic table."""
    return several.synthetic_tables(settings["case"], settings["rows"], settings["replications"])


def _made(
    settings: dict[str, Any],
) -> tuple[Strategy, dict[str, pd.DataFrame], "pd.Series[float] | None"]:
    """Return a case's strategy, tables and labels; as many rows as it needs at least."""
    case = case_named(settings["case"])
    rows = max(settings["rows"], ROWS.get(case.strategy, 0))
    tables, labels = make_case_tables(case, rows, settings["parties"], settings["seed"])
    return make_strategy_of(case, tables, labels), tables, labels


def case_named(name: str) -> Case:
    """Return the case of a name."""
    known = [*cases(), *cases(consented=True), *routed_cases()]
    return next(case for case in known if case.name == name)


def _complete_tables(settings: dict[str, Any]) -> tuple[dict[str, pd.DataFrame], Any]:
    case = case_named("complete-case")
    n_parties = settings["parties"]
    return make_case_tables(case, settings["rows"], n_parties, settings["seed"], missing=0.0)


PARTS: dict[str, Callable[[dict[str, Any]], Metrics]] = {
    "grid": _grid, "consented": _grid, "labels": _labels, "routed": _routed, "rough": _rough,
    "deviating": _deviating,
    "other labels": _other_labels, "one label less": _one_label_less, "chosen model": _chosen_model,
    "flags from predictions": _flag_predictions, "scales": _scales, "synthetic": _synthetic,
}  # fmt: skip
