"""From replications to the tables of the finite-sample parts."""

import numpy as np
import pandas as pd

from simulations.replications import numbers_of
from simulations.vfem.methods import BASELINES, STEADIED

SETTING = ["mechanism", "rows", "A too", "rate"]
MISSING_AT = {False: "B to E", True: "A to E"}


def part(frame: pd.DataFrame, name: str, number: str = "") -> pd.DataFrame:
    """Return one part's numbers, the metric split into ``method`` and ``number``."""
    chosen = frame[frame["part"] == name]
    split = chosen["metric"].str.partition("/")
    chosen = chosen.assign(method=split[0], number=split[2])
    return chosen[chosen["number"] == number] if number else chosen


def finite(frame: pd.DataFrame, number: str) -> pd.DataFrame:
    """Mean over the runs that a method could fit, NaN without any: settings by methods."""
    chosen = part(frame, "finite", number)
    table = chosen.pivot_table(index=SETTING, columns="method", values="value", aggfunc="mean")
    return _named(table.reindex(columns=[*BASELINES, "VFEM", STEADIED]))


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Say in words which parties miss blocks, in the order of the settings."""
    table = table.sort_index(ascending=[False, True, True, True])
    keys = [(*key[:2], MISSING_AT[bool(key[2])], key[3]) for key in table.index]
    names = ["mechanism", "rows", "missing at", "rate"]
    return table.set_axis(pd.MultiIndex.from_tuples(keys, names=names))


def paired(frame: pd.DataFrame, number: str, method: str = "VFEM") -> pd.DataFrame:
    """Mean difference of each baseline to a method over the runs that both could fit."""
    chosen = part(frame, "finite", number)
    runs = chosen.pivot_table(index=[*SETTING, "seed"], columns="method", values="value")
    runs = runs.reindex(columns=[*BASELINES, method])
    gaps = runs[[*BASELINES]].sub(runs[method], axis=0)
    return _named(gaps.groupby(level=SETTING).mean())


def effort(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rounds and noise variance of VFEM, shares that converged or failed."""
    wide = numbers_of(frame, "finite", SETTING)
    columns = {
        "complete cases": "complete cases",
        "VFEM/rounds": "VFEM rounds",
        "VFEM/converged": "VFEM converged",
        "VFEM/sigma2": "noise variance by VFEM",
        f"{STEADIED}/sigma2": "noise variance with prior",
        f"{STEADIED}/converged": "converged with prior",
        "CC/failed": "CC impossible",
        "VFEM/failed": "VFEM impossible",
    }
    table = wide[[name for name in columns if name in wide]].rename(columns=columns)
    return _named(table.rename_axis(columns=None))


def inference(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Coverage and standard errors by kind and party."""
    chosen = part(frame, name)
    chosen = chosen[chosen["number"] != ""]
    keys = ["rows", "cross", "kind", "number"]
    runs = chosen.pivot_table(index=[*keys, "seed"], columns="method", values="value")
    groups = runs.groupby(level=keys)
    mean, deviation = groups.mean(), groups.std()["error"]
    columns = pd.DataFrame(
        {
            "runs": groups.size(),
            "coverage": mean["covered"],
            "with SE": groups["std_error"].count() / groups["error"].count(),
            "ratio": mean["std_error"] / deviation,
            # A mean of few runs is off by chance; that much is no bias.
            "bias²": mean["error"] ** 2 - deviation**2 / groups.size(),
            "SD²": deviation**2,
        }
    )
    party = columns.index.get_level_values("number").str.partition("/").get_level_values(0)
    by = columns.groupby([*(columns.index.get_level_values(key) for key in keys[:3]), party]).mean()
    table = pd.DataFrame(
        {
            "runs": by["runs"].round().astype(int),
            "with SE": by["with SE"],
            "coverage": by["coverage"],
            "SE / SD": by["ratio"],
            "bias": np.sqrt(by["bias²"].clip(lower=0)),
            "SD": np.sqrt(by["SD²"]),
            "RMSE": np.sqrt(by["bias²"].clip(lower=0) + by["SD²"]),
        }
    )
    return table.rename_axis(index=["rows", "cross", "kind", "party"])
