"""Attacks that need runs of their own: repeated ones, a model of the server's choice, outputs."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from flwr_vertical import Result, Strategy, load_strategy, simulate
from flwr_vertical.arrays import Array
from flwr_vertical.errors import PartyError, VerticalError
from flwr_vertical.grading import risks
from flwr_vertical.privacy import seeded_noise
from simulations.attacks.distances import matrices, scale_candidates
from simulations.attacks.opened import atoms, smallest_set
from simulations.attacks.recording import record
from simulations.attacks.score import Guess, Score, score
from simulations.attacks.suite import columns_of
from simulations.attacks.views import SERVER, aligned_truth, views_of
from strategies import BUILTIN
from strategies.fknn import party as fknn_party
from strategies.fknn.blinding import Blinding

Tables = Mapping[str, pd.DataFrame]


def runs_with_other_labels(
    strategy: Strategy, tables: Tables, n_runs: int, tolerance: float
) -> Score:
    """Solve coefficients and predictions of honest runs with invented labels for columns."""
    rng = np.random.default_rng(0)
    ids = next(iter(tables.values())).index
    chosen = rng.random(len(ids)) < 0.5
    slopes, fits, keys, rows = [], [], None, None
    for _ in range(n_runs):
        labels = pd.Series(np.where(chosen, rng.normal(size=len(ids)), np.nan), index=ids)
        found = simulate(strategy, tables, labels, progress=False)
        assert found.coefficients is not None
        assert found.predictions is not None
        estimates = found.coefficients["estimate"]
        own = estimates[estimates.index.get_level_values(0) != "server"]
        keys, rows = list(own.index), found.predictions.index
        slopes.append(own.to_numpy(dtype=float))
        fits.append(found.predictions["prediction"].to_numpy(dtype=float))
    assert keys is not None
    assert rows is not None
    centred = np.array(fits) - np.mean(fits, axis=1, keepdims=True)
    columns = np.linalg.lstsq(np.array(slopes), centred, rcond=None)[0]
    truth = {name: frame.loc[rows].reset_index(drop=True) for name, frame in tables.items()}
    at = np.arange(len(rows))
    return score(
        [Guess(at, c, k) for c, k in zip(columns, keys, strict=True)], truth, tolerance=tolerance
    )


def runs_with_one_label_less(
    strategy: Strategy, tables: Tables, labels: Any
) -> tuple[Score, int | None]:
    """Subtract what two runs opened, of which the second lacks one label."""
    runs = [record(strategy, tables, given) for given in (labels, _one_less(labels))]
    views = [views_of(run)[SERVER] for run in runs]
    truth = aligned_truth(runs[0], views[0].positions)
    return score(atoms(views, columns_of(truth)), truth), smallest_set(views)


def refused_with_one_label_less(
    strategy: Strategy, tables: Tables, labels: Any, folder: Path
) -> str:
    """Ask for the same two runs of parties that keep a privacy ledger each."""
    agreed = {"alignments": "plain"}
    for number, given in enumerate((labels, _one_less(labels))):
        try:
            simulate(
                strategy, tables, given, alignment="plain", policy=agreed, ledgers=folder,
                progress=False,
            )  # fmt: skip
        except PartyError as error:
            if not number:
                raise
            return str(error)
    return ""


def _one_less(labels: Any) -> Any:
    fewer = labels.copy()
    known = labels.dropna().index
    fewer[known[len(known) // 2]] = np.nan
    return fewer


def chosen_model(predictor: Callable[[Result], Strategy], fitted: Result, tables: Tables) -> Score:
    """Ask for predictions of a model that the server made up: one coefficient 1, others 0."""
    guesses, rows = [], None
    assert fitted.coefficients is not None
    for key in fitted.coefficients.index:
        if key[0] == "server":
            continue
        crafted = deepcopy(fitted)
        assert crafted.coefficients is not None
        crafted.coefficients["estimate"] = 0.0
        crafted.coefficients.loc[key, "estimate"] = 1.0
        try:
            found = simulate(predictor(crafted), tables, progress=False)
        except VerticalError:
            continue
        assert found.predictions is not None
        rows = found.predictions.index
        values = found.predictions["prediction"].to_numpy(dtype=float)
        guesses.append(Guess(np.arange(len(rows)), values, key))
    if rows is None:
        return Score()
    truth = {name: frame.reindex(rows).reset_index(drop=True) for name, frame in tables.items()}
    return score(guesses, truth)


def flags_from_predictions(
    predictions: Array, coefficients: Array, truth: Array, intercept: float
) -> float:
    """Find rows of flags by trying all for the prediction that was told.

    Shapes: predictions (n_rows,): as told; coefficients (n_flags,): known to the server; some ten
    flags; truth (n_rows, n_flags): zeros and ones.
    """
    n_flags = len(coefficients)
    every = (np.arange(2**n_flags)[:, None] >> np.arange(n_flags)) & 1
    order = np.argsort(fits := intercept + every @ coefficients)
    at = np.clip(np.searchsorted(fits[order], predictions), 1, len(fits) - 1)
    left, right = fits[order[at - 1]], fits[order[at]]
    nearest = np.where(predictions - left < right - predictions, order[at - 1], order[at])
    hit = float((every[nearest] == truth).mean())
    chance = float(np.maximum(truth.mean(axis=0), 1 - truth.mean(axis=0)).mean())
    return max(0.0, (hit - chance) / (1.0 - chance))


def scales_found(
    strategy: Strategy, tables: Tables, labels: Any = None, n_triples: int = 2, **options: Any
) -> bool:
    """Tell whether three rows of distances give away the ratio of two rows' scales.

    Sums of logarithms meet by chance as well: of 40 donors, a few of the 1,600 pairs of entries. So
    what is found is compared with the scales that the parties used.
    """
    used: list[Blinding] = []

    class Watched(Blinding):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            used.append(self)

    with patch.object(fknn_party, "Blinding", Watched):
        run = record(strategy, tables, labels, **options)
    view = views_of(run)[SERVER]
    places = np.concatenate([item.value for item in view.named("rows") if len(item.value)])
    scales = np.log([used[0].scale(place) for place in places[: 3 * n_triples].tolist()])
    for name, matrix in matrices(view):
        if not name.startswith("impute.") or name.endswith("/ distance"):
            continue
        for at in range(0, min(len(scales), len(matrix)) - 2, 3):
            usable = [row[np.isfinite(row) & (row > 0)] for row in matrix[at : at + 3]]
            least = min(map(len, usable))
            if least < 5:
                continue
            found = scale_candidates(np.array([row[:least] for row in usable]))
            near = np.abs(found - (scales[at] - scales[at + 1])) < 1e-6
            if near.any() and len(found) <= least**2 / 100:
                return True
    return False


def synthetic_tables(name: str, n: int, n_runs: int) -> dict[str, float]:
    """Attack synthetic tables: who was in the data, who is singled out, linked, guessed about."""
    found = []
    for run in range(n_runs):
        rng = np.random.default_rng(run)
        members, others = _population(n, rng), _population(n, rng)
        half = members.shape[1] // 2
        parties = {"bank": members.iloc[:, :half], "court": members.iloc[:, half:]}
        with seeded_noise(run):
            strategy = load_strategy(BUILTIN[name])()
            tables = simulate(strategy, parties, seed=run, progress=False).tables
        synthetic = pd.concat([tables["bank"], tables["court"]], axis=1)
        left, right = ([str(name) for name in table] for table in parties.values())
        number, flag = risks.inferences(members, others, synthetic, ["x0", "flag"])
        attacks = {
            "membership": risks.membership(members, others, synthetic),
            "one column singles out": risks.singling_out(members, others, synthetic, 1, seed=run),
            "three columns single out": risks.singling_out(members, others, synthetic, 3, seed=run),
            "parties' columns linked": risks.linkability(members, others, synthetic, left, right),
            "a number": number,
            "a flag": flag,
        }
        found.append({name: 100 * risk.gain.value for name, risk in attacks.items()})
    means = pd.DataFrame(found).mean().round(9)  # a sum of shares may miss 0 by its last bit
    return {str(key): float(value) for key, value in means.items()}


def _population(n: int, rng: np.random.Generator) -> pd.DataFrame:
    values = rng.normal(size=(n, 6)) + 1.2 * rng.normal(size=(n, 1))
    frame = pd.DataFrame(values, columns=[f"x{j}" for j in range(6)])
    frame["flag"] = (frame.pop("x5") > 0).astype(int)
    return frame
