"""The study's tables: by strategy, by attack, by several runs."""

from typing import Any

import pandas as pd

from simulations.attacks.deviating import OUTCOMES
from simulations.attacks.experiments import REFUSED, SEPARATOR
from simulations.attacks.suite import ATTACKS, LABELS
from simulations.attacks.views import SERVER
from simulations.page import FAIL, PASS, indexed
from simulations.replications import numbers_of

_SERVER, _PARTIES = "server", "parties"
_NONE = "nothing"


def findings(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return one row for each run, view and attack: cells, columns, what outputs allow."""
    rows = frame[(frame["part"] == part) & frame["metric"].str.contains(SEPARATOR, regex=False)]
    names = rows["metric"].str.split(SEPARATOR, expand=True)
    rows = rows.assign(view=names[0], attack=names[1], what=names[2])
    keys = ["case", "mode", "parties", "seed", "view", "attack"]
    wide = rows.pivot_table(index=keys, columns="what", values="value").reset_index()
    wide["beyond"] = (wide["cells"] - wide["allowed"]).clip(lower=0.0)
    wide["side"] = wide["view"].where(wide["view"] == SERVER, _PARTIES)
    return wide


def by_strategy(found: pd.DataFrame) -> pd.DataFrame:
    """Return, for each strategy and mode, the most that any attack finds, over all runs."""
    rows = {}
    for (mode, case), part in found.groupby(["mode", "case"], sort=False):
        cells = part[part["attack"] != LABELS]
        server = cells[cells["side"] == SERVER]
        others = cells[cells["side"] == _PARTIES]
        worst = cells.sort_values("cells").iloc[-1]
        rows[mode, case] = {
            "server: cells": server["cells"].max(),
            "server: columns": server["columns"].max(),
            "outputs alone": server["allowed"].max(),
            "party: cells": others["cells"].max(),
            "party: labels": part[part["attack"] == LABELS]["cells"].max(),
            "strongest attack": worst["attack"] if worst["cells"] > 0 else _NONE,
        }
    return indexed(rows, ["mode", "strategy"])


def by_attack(found: pd.DataFrame, consented: pd.DataFrame) -> pd.DataFrame:
    """Return the most that each attack finds: at defaults, and where nodes consented to sums."""
    masked = found[found["mode"] == "masked"]
    rows = {
        name: {
            "default: server": _most(masked, name, SERVER),
            "default: a party": _most(masked, name, _PARTIES),
            "with consent: server": _most(consented, name, SERVER),
            "with consent: a party": _most(consented, name, _PARTIES),
        }
        for name in (*ATTACKS, LABELS)
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("attack")


def several(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what attacks of several runs and on outputs find."""
    rows: dict[str, float] = {}
    for (runs, metric), value in _means(frame, "other labels", ["repeated", "metric"]).items():
        name = f"{runs:g} runs with other labels: cells to {float(metric):g} of a column's SD"
        rows[name] = value
    for (metric,), value in _means(frame, "one label less", ["metric"]).items():
        what = {
            "rows": "rows of the smallest set given away",
            "refused by ledgers": "refused where nodes keep privacy ledgers (1 = yes)",
        }.get(str(metric), "cells")
        rows[f"two runs, one label less in the second: {what}"] = value
    for value in _means(frame, "chosen model", ["metric"]).values():
        rows["predictions by a model of the server's choice: cells"] = value
    for (flags,), value in _means(frame, "flags from predictions", ["flags"]).items():
        rows[f"predictions and coefficients, {flags:g} flags: flags found beyond guessing"] = value
    for (metric,), value in _means(frame, "scales", ["metric"]).items():
        told = ", weights by distance" if metric == "consented" else ""
        rows[f"nearest neighbours{told}: scales where three rows meet (1 = found)"] = value
    for (case, metric), value in _means(frame, "synthetic", ["case", "metric"]).items():
        rows[f"{case}, {metric}: points above chance"] = value
    return pd.DataFrame({"found": rows}).rename_axis("attack")


def labels(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how well parties tell labels from their own columns, and what messages add."""
    names = {"own": "own columns", "gain": "gain"}
    return _wide(frame, "labels", ["case"], names, over_seeds="max").sort_index()


def routed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what trees tell, by strategy and number of parties."""
    names = {
        "bits": "server: bits of a cell", "of bits": "of", "codes": "server: codes known",
        "bins": "server: codes from histograms", "server cells": "server: cells",
        "party cells": "party: cells", "blind": "party: AUC of labels", "known": "with 50 known",
        "model": "the model's", "sign": "arbiter: signs right",
        "correlation": "arbiter: correlation", "chance": "by chance",
    }  # fmt: skip
    return _wide(frame, "routed", ["case", "parties"], names)


def deviating(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how many other messages a server tried, and how these ended, by strategy."""
    names = {name: name for name in ("tries", *OUTCOMES, "cells", "masked alike")}
    tried = frame[frame["metric"] != REFUSED]
    return _wide(tried, "deviating", ["mode", "case"], names).astype(int)


def rough(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how much of others' columns follows, roughly, where nodes agreed to an exchange."""
    names = {"server": "server", "own": "a party: own columns", "party": "a party: and messages"}
    return _wide(frame, "rough", ["mode", "case"], names)


def refused(frame: pd.DataFrame) -> list[str]:
    """Return the strategies that do not offer ckks."""
    rows = frame[(frame["part"] == "grid") & (frame["metric"] == REFUSED)]
    return sorted(rows["case"].unique()) if len(rows) else []


def smallest_sets(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the smallest set whose sums a run opened, by strategy."""
    rows = frame[(frame["part"] == "grid") & (frame["metric"] == "smallest set")]
    if rows.empty:
        return pd.DataFrame({"rows": []})
    least = rows.groupby("case")["value"].min().astype(int)
    return least.rename("rows").to_frame().rename_axis("strategy")


def targets(frame: pd.DataFrame, goals: dict[str, float]) -> pd.DataFrame:
    """Return what was expected and what came, each with PASS or FAIL."""
    found = findings(frame, "grid")
    safe = found[(found["mode"] != "plain") | (found["side"] != SERVER)]
    cells = safe[safe["attack"] != LABELS]["beyond"].max()
    columns = safe[(safe["attack"] != LABELS) & (safe["beyond"] > 0)]["columns"].sum()
    gain = max([safe[safe["attack"] == LABELS]["cells"].max(), *labels(frame)["gain"]])
    server = deviating(frame)[["cells", "masked alike"]].to_numpy().sum()
    points = frame[frame["part"] == "synthetic"].groupby(["case", "metric"])["value"].mean().max()
    rows = {
        "cells beyond the outputs, any view": (cells, 0.0),
        "whole columns beyond the outputs": (columns, 0.0),
        "labels at a party: R squared or AUC beyond its own columns": (gain, goals["labels"]),
        "a deviating server: cells told, messages masked alike": (server, 0.0),
        "synthetic tables: points above chance": (points, goals["points"]),
    }
    return pd.DataFrame(
        {
            "found": {name: value for name, (value, _) in rows.items()},
            "at most": {name: limit for name, (_, limit) in rows.items()},
            "as expected": {
                name: PASS if value <= limit else FAIL for name, (value, limit) in rows.items()
            },
        }
    ).rename_axis("what")


def _wide(
    frame: pd.DataFrame, part: str, keys: list[str], names: dict[str, str], over_seeds: Any = "mean"
) -> pd.DataFrame:
    """Return the numbers of a part by these keys, a column for each, under its new name."""
    wide = numbers_of(frame, part, keys, over_seeds, sort=False)
    wide = wide.reindex(columns=[*names]).rename(columns=names).rename_axis(columns=None)
    return wide.rename_axis(["strategy" if key == "case" else key for key in keys])


def _most(found: pd.DataFrame, attack: str, side: str) -> float | None:
    chosen = found[(found["attack"] == attack) & (found["side"] == side)]
    return None if chosen.empty else float(chosen["cells"].max())


def _means(frame: pd.DataFrame, part: str, keys: list[str]) -> dict[tuple[Any, ...], float]:
    rows = frame[frame["part"] == part]
    if rows.empty:
        return {}
    means = rows.groupby(keys)["value"].mean()
    return {key if isinstance(key, tuple) else (key,): float(value) for key, value in means.items()}
