"""The part of parties that share few rows, or none: what VFEM gives, and what it withholds.

The strategies run as a user runs them, by the default rules on rows.
"""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical import Strategy, simulate
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from simulations.page import PASS, verdicts
from simulations.replications import Metrics, numbers_of
from strategies.vfem import VFEM, CompleteCase

OURS, COMPLETE = "VFEM", "CC"


def draw_labelled(
    rng: np.random.Generator, n: int, p: int, correlation: float
) -> tuple[Array, "pd.Series[float]", Array]:
    """Draw columns with one correlation, labels of which they explain 3/4, and coefficients."""
    covariance = correlation + (1.0 - correlation) * np.eye(p)
    x = rng.multivariate_normal(np.zeros(p), covariance, size=n)
    beta = rng.normal(size=p)
    noise = np.sqrt(beta @ covariance @ beta / 3.0)
    index = [f"row-{i:05d}" for i in range(n)]
    return x, pd.Series(x @ beta + noise * rng.normal(size=n), index=index), beta


def draw_apart(
    settings: dict[str, Any],
) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]", Array]:
    """Draw the parties' tables, the labels, and the coefficients."""
    rng = np.random.default_rng(settings["seed"])
    widths, n = settings["widths"], settings["rows"]
    p = sum(widths)
    x, labels, beta = draw_labelled(rng, n, p, settings["correlation"])
    absent = rng.random((n, len(widths))) < settings["rate"]
    if settings["apart"]:
        absent[:, 0] = rng.random(n) < 0.5
        absent[:, 1] = ~absent[:, 0]
    frame = pd.DataFrame(x, index=labels.index, columns=[f"x{j:02d}" for j in range(p)])
    ends = np.cumsum([0, *widths])
    tables = {
        f"party-{k:02d}": frame.loc[~absent[:, k]].iloc[:, ends[k] : ends[k + 1]]
        for k in range(len(widths))
    }
    return tables, labels, beta


def replicate_apart(settings: dict[str, Any]) -> Metrics:
    """Fit VFEM and, where its rows suffice, complete cases: errors, intervals given, coverage."""
    tables, labels, beta = draw_apart(settings)
    metrics: Metrics = {}
    methods: dict[str, Strategy] = {OURS: VFEM(), COMPLETE: CompleteCase()}
    for name, strategy in methods.items():
        try:
            result = simulate(strategy, tables, labels, progress=False, seed=settings["seed"])
        except DataError:
            continue
        assert result.coefficients is not None
        table = result.coefficients.iloc[1:]
        # Of a column that no group of rows has there is no estimate: as good as none at all.
        gap = np.nan_to_num(table["estimate"].to_numpy(dtype=float)) - beta
        low, high = (table[name].to_numpy(dtype=float) for name in ("ci_low", "ci_high"))
        given = np.isfinite(low)
        inside = (low[given] <= beta[given]) & (beta[given] <= high[given])
        metrics[f"{name}/squared error"] = float(np.mean(gap**2))
        metrics[f"{name}/given"] = float(given.sum())
        metrics[f"{name}/covered"] = float(inside.sum())
        metrics[f"{name}/coefficients"] = float(len(beta))
    return metrics


def apart_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return by case the RMSE of both methods, the share of intervals given and their coverage."""
    wide = numbers_of(frame, "apart", ["case", "seed"])
    rows = {}
    for case in frame.loc[frame["part"] == "apart", "case"].unique():
        own = wide.loc[case]
        total = own.sum()
        both = own.dropna() if f"{COMPLETE}/squared error" in own else own[:0]
        rows[case] = {
            "runs": len(own),
            f"RMSE {OURS}": float(np.sqrt(own[f"{OURS}/squared error"].mean())),
            "runs with CC": len(both),
            f"RMSE {OURS}, these": _root(both, OURS),
            f"RMSE {COMPLETE}, these": _root(both, COMPLETE),
            "intervals given": total[f"{OURS}/given"] / total[f"{OURS}/coefficients"],
            "coverage": total[f"{OURS}/covered"] / (total[f"{OURS}/given"] or np.nan),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("case")


def _root(runs: pd.DataFrame, method: str) -> float:
    return float(np.sqrt(runs[f"{method}/squared error"].mean())) if len(runs) else np.nan


def apart_target(table: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Whether intervals that are given cover, and errors are not above those of complete cases."""
    low, high = settings["coverage"]
    covers = table["coverage"].between(low, high)
    none = table["intervals given"] == 0.0
    limit = settings["above_complete"]
    ours, complete = table[f"RMSE {OURS}, these"], table[f"RMSE {COMPLETE}, these"]
    fair = verdicts((ours <= (1.0 + limit) * complete) | complete.isna())
    return pd.DataFrame(
        {
            f"coverage {low:g} to {high:g}": verdicts(covers).mask(none, f"{PASS} none given"),
            f"at most {limit:.0%} above CC": fair.mask(complete.isna(), f"{PASS} CC impossible"),
        }
    )
