"""The part of correlated parties: maximum likelihood from moments by pattern, beside others.

No message is sent: the methods see the sums by missingness pattern that the federated code opens,
exactly (its tests compare the two), so hundreds of replications take minutes.
"""

from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from simulations.page import verdicts
from simulations.replications import Metrics
from simulations.vfem.tables import part
from strategies.linear.moments.covariances import BlockCovariance, FullCovariance
from strategies.linear.moments.fit import fit_normal
from strategies.linear.moments.linear import least_squares
from strategies.linear.moments.patterns import Patterns

FULL, BLOCK, COMPLETE, IMPUTE = "VFEM", "VFEM, block", "CC", "Impute"
_Z = 1.959964


def draw(settings: dict[str, Any]) -> tuple[Array, Array]:
    """Draw a table with blocks missing (the label last), and coefficients; shape (n_columns,)."""
    rng = np.random.default_rng([settings["seed"], round(1000 * settings["correlation"])])
    widths, n = settings["widths"], settings["rows"]
    p = sum(widths)
    covariance = settings["correlation"] + (1.0 - settings["correlation"]) * np.eye(p)
    x = rng.multivariate_normal(np.ones(p), covariance, size=n)
    beta = np.resize([1.0, -0.5, 0.25, 0.75, -1.0], p)
    y = 1.0 + x @ beta + settings["noise"] * rng.normal(size=n)
    absent = rng.random((n, len(widths))) < settings["rate"]
    x[np.repeat(absent, widths, axis=1)] = np.nan
    return np.column_stack([x, y]), beta


def replicate_correlated(settings: dict[str, Any]) -> Metrics:
    """Fit all methods to one table: mean squared errors, and the coverage of 95 % intervals."""
    rows, beta = draw(settings)
    patterns = Patterns.of(rows)
    d = len(beta) + 1
    found: dict[str, tuple[Array, Array]] = {}
    for name, model in (
        (FULL, FullCovariance(np.ones((d, d), dtype=bool))),
        (BLOCK, BlockCovariance(settings["widths"])),
    ):
        fit = fit_normal(patterns, model)
        found[name] = fit.beta, fit.std_error[1:]
    complete = rows[~np.isnan(rows).any(axis=1)]
    imputed = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    for name, table in ((COMPLETE, complete), (IMPUTE, imputed)):
        (pattern,) = Patterns.of(table).patterns
        exact = least_squares(pattern, intercept=True)
        found[name] = exact.beta, np.sqrt(np.diag(exact.vcov)[1:])
    metrics: Metrics = {}
    for name, (estimate, error) in found.items():
        metrics[f"{name}/squared error"] = float(np.mean((estimate - beta) ** 2))
        metrics[f"{name}/coverage"] = float(np.mean(np.abs(estimate - beta) <= _Z * error))
    return metrics


def correlated_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return RMSE and coverage by correlation and rate, a column for each method."""
    chosen = part(frame, "correlated")
    keys = ["number", "correlation", "rate"]
    table = chosen.pivot_table(index=keys, columns="method", values="value")
    table = table[[FULL, BLOCK, COMPLETE, IMPUTE]]
    rmse, coverage = table.loc["squared error"] ** 0.5, table.loc["coverage"]
    return pd.DataFrame(pd.concat([rmse, coverage], axis=1, keys=["RMSE", "coverage"]))


def correlated_target(table: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Whether intervals cover, and errors are below the baselines', in every cell."""
    low, high = settings["coverage"]
    rmse, coverage = table["RMSE"], table["coverage"][FULL]
    return pd.DataFrame(
        {
            "coverage": coverage,
            f"coverage {low:g} to {high:g}": verdicts(coverage.between(low, high)),
            "below CC": verdicts(rmse[FULL] < rmse[COMPLETE]),
            "below Impute": verdicts(rmse[FULL] < rmse[IMPUTE]),
        }
    )
