"""From the numbers of replications to tables, and what was aimed at."""

from typing import Any

import numpy as np
import pandas as pd

from simulations.page import FAIL, PASS, indexed, verdict
from simulations.replications import numbers_of
from simulations.trees.methods import METHODS, OURS
from simulations.trees.own import OURS as DEFAULTS
from simulations.trees.own import TUNED

SEEDS = "seeds"
_SIGNS = {"AUC": 1.0, "accuracy": 1.0, "log loss": -1.0, "RMSE": -1.0}


def wide(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return the numbers of a part, a line for each replication."""
    return numbers_of(frame, part, ["dataset", "share", "method", "seed"], sort=False)


def pooled(frame: pd.DataFrame, within: float) -> pd.DataFrame:
    """Compare with the central booster: mean, and the paired difference, in favour of ours.

    Hidden histograms, run for few seeds, are judged by what open ones predict with the same seeds.
    """
    found = wide(frame, "pooled")
    rows: dict[Any, dict[str, Any]] = {}
    for (dataset, share, mode), own in found.groupby(level=[0, 1, 2], sort=False):
        for name, sign in _SIGNS.items():
            if f"ours {name}" not in own or own[f"ours {name}"].isna().all():
                continue
            ours, theirs = own[f"ours {name}"], own[f"central {name}"]
            gap = sign * (ours - theirs)
            off, text = abs(gap.mean()), ""
            if mode == "hidden":
                same = found.xs((dataset, share, "open"))[f"ours {name}"]
                off, text = (ours.droplevel([0, 1, 2]) - same).abs().max(), " (of open)"
            error = gap.std() / np.sqrt(len(gap)) if len(gap) > 1 else float("nan")
            rows[dataset, share, mode, name] = {
                "federated": f"{ours.mean():.4f}",
                "scikit-learn": f"{theirs.mean():.4f}",
                "difference": f"{gap.mean():+.4f}",
                "its standard error": "–" if np.isnan(error) else f"{error:.4f}",
                f"within {within:g}": (PASS if off <= within else FAIL) + text,
                SEEDS: len(gap),
            }
    return indexed(rows, ["dataset", "cells missing", "histograms", "measure"])


def defaults(frame: pd.DataFrame, within: float) -> pd.DataFrame:
    """Return mean AUC at default settings, and by how much ours is above others', by seed."""
    found = wide(frame, "defaults")
    rows: dict[Any, dict[Any, Any]] = {}
    for dataset, part in found.groupby(level=0, sort=False):
        auc = part["AUC"].droplevel(["dataset", "share"]).unstack("method")
        row: dict[Any, str] = {name: f"{auc[name].mean():.4f}" for name in auc}
        for name in auc.columns.drop(DEFAULTS, errors="ignore") if DEFAULTS in auc else ():
            gap = (auc[DEFAULTS] - auc[name]).dropna()
            said = f"{gap.mean():+.4f} ± {gap.std() / np.sqrt(len(gap)):.4f}"
            near = gap.mean() >= -within
            row[f"less {name}"] = verdict(near, said) if name == TUNED else said
        rows[(dataset,)] = {**row, SEEDS: len(auc)}
    return indexed(rows, ["dataset"]).fillna("not run")


def blocks(frame: pd.DataFrame, metric: str = "AUC") -> pd.DataFrame:
    """Return means and standard deviations of one measure, by method and share of b's samples."""
    found = wide(frame, "blocks")
    rows: dict[Any, dict[str, Any]] = {}
    for method in METHODS:
        for (_, share, name), own in found.groupby(level=[0, 1, 2], sort=True):
            if name == method:
                value = own[metric]
                spread = f" ({value.std():.4f})" if len(value) > 1 else ""
                text = f"{value.mean():.4f}{spread}"
                rows.setdefault((method,), {})[f"{share:.0%} of b's missing"] = text
    return indexed(rows, ["method"]).fillna("not run")


def margins(frame: pd.DataFrame) -> pd.DataFrame:
    """Return by how much AUC of trees by pattern is above each other method's, paired by seed."""
    found = wide(frame, "blocks")
    rows: dict[Any, dict[str, Any]] = {}
    for (_, share), part in found.groupby(level=[0, 1], sort=True):
        by_seed = part["AUC"].droplevel(["dataset", "share"]).unstack("method")
        for method in METHODS if OURS in by_seed else ():
            gap = (by_seed[OURS] - by_seed.get(method, np.nan)).dropna()
            if method == OURS or gap.empty:
                continue
            least = f"{gap.mean():+.4f} (least {gap.min():+.4f}, {len(gap)} seeds)"
            said = verdict(gap.mean() > 0, least)
            rows.setdefault((method,), {})[f"{share:.0%} of b's missing"] = said
    return indexed(rows, ["above"]).fillna("not run")


def seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean processor seconds of the federated fits and predictions."""
    spent: dict[Any, list[float]] = {}
    for part in ("pooled", "blocks"):
        for (dataset, _, method), own in wide(frame, part).groupby(level=[0, 1, 2], sort=False):
            if part == "pooled" or str(method).startswith("federated"):
                spent.setdefault((dataset, method), []).append(own["CPU seconds"].mean())
    means = {key: {"processor seconds": f"{np.mean(of):.0f}"} for key, of in spent.items()}
    return indexed(means, ["dataset", "histograms or method"])
