"""VFEM with many parties, whose patterns of missing blocks are small: errors and coverage.

Columns are normal with correlations of 0.4, and explain three quarters of the label's variance.
Blocks are missing completely at random (mcar), by the label (mar), or by a column of their own
(mnar). Beside VFEM by its default, on the parties' tables: maximum likelihood, complete cases and
multiple imputation (five draws of scikit-learn's `IterativeImputer`, Rubin's rules), all three on
the pooled table. RMSE of the coefficients over their standard deviation, which is 1; coverage of 95
% intervals over those that are given::

    python -m simulations.vfem.completed [--quick] [--output FOLDER]

Replications are kept in the folder as they finish, and never computed twice.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next one)
from sklearn.impute import IterativeImputer

from flwr_vertical import Result, simulate
from flwr_vertical.arrays import Array
from flwr_vertical.errors import VerticalError
from simulations.page import indexed, markdown_table
from simulations.replications import Job, Metrics, Store, grid, run_all
from simulations.vfem.apart import draw_labelled
from simulations.vfem.missing import logistic_chance, standardised
from strategies.linear.moments.linear import least_squares
from strategies.linear.moments.many_columns import counts_of, maximum
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.moments.scoring import covariance_of_slopes
from strategies.normal.rubin import pool
from strategies.vfem import VFEM

_DRAWS = 5
_ROWS = 2000
_VERSION = "3"

Fitted = tuple[Array, Array]
"""Coefficients and their standard errors; NaN where there are none."""


def draw(settings: dict[str, Any]) -> tuple[dict[str, pd.DataFrame], "pd.Series[float]", Array]:
    """Draw the parties' tables, the labels, and the coefficients."""
    rng = np.random.default_rng(settings["seed"])
    k, width = settings["parties"], settings["width"]
    x, labels, beta = draw_labelled(rng, _ROWS, k * width, 0.4)
    tables = {}
    for j in range(k):
        score = np.zeros(_ROWS)
        if settings["missing"] == "mar":
            score = 1.5 * (-1.0) ** j * standardised(labels.to_numpy())
        elif settings["missing"] == "mnar":
            score = 1.5 * standardised(x[:, j * width])
        here = rng.random(_ROWS) >= logistic_chance(score, settings["rate"])
        frame = pd.DataFrame(x[:, j * width : (j + 1) * width], labels.index)
        tables[f"party-{j:02d}"] = frame.loc[here].add_prefix(f"x{j:02d}-")
    return tables, labels, beta


def _vfem(tables: dict[str, pd.DataFrame], labels: "pd.Series[float]", metrics: Metrics) -> Fitted:
    result = simulate(VFEM(), tables, labels, progress=False)
    assert result.coefficients is not None
    assert result.ledger is not None
    metrics["rounds"] = float(result.ledger.rounds)
    metrics["steps"] = result.metrics["iterations"]
    table = result.coefficients.iloc[1:]
    return table["estimate"].to_numpy(float), table["std_error"].to_numpy(float)


def _maximum_likelihood(rows: Array) -> Fitted:
    patterns = Patterns.of(rows)
    mean, covariance, _, _ = maximum(patterns, *patterns.available(), 1e-9, 100)
    counts, none = counts_of(patterns), np.zeros(len(mean))
    vcov, _ = covariance_of_slopes(counts, covariance, mean, covariance, none)
    beta = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
    return np.asarray(beta, dtype=np.float64), np.sqrt(np.diag(vcov)[1:])


def _least_squares(rows: Array) -> Fitted:
    n, d = rows.shape
    if n < d + 3:
        return np.full(d - 1, np.nan), np.full(d - 1, np.nan)
    fit = least_squares(Pattern(np.arange(d), float(n), rows.sum(axis=0), rows.T @ rows), True)
    return fit.beta, np.sqrt(np.diag(fit.vcov)[1:])


def _multiple_imputation(rows: Array, seed: int) -> Fitted:
    fits = []
    for m in range(_DRAWS):
        imputer = IterativeImputer(
            sample_posterior=True, max_iter=5, tol=0.0, random_state=_DRAWS * seed + m
        )
        beta, error = _least_squares(imputer.fit_transform(rows))
        fits.append(Result("", coefficients=pd.DataFrame({"estimate": beta, "std_error": error})))
    found = pool(fits)
    return found["estimate"].to_numpy(float), found["std_error"].to_numpy(float)


def replicate(job: Job, shared: Any = None) -> Metrics:
    """Fit all methods to one draw."""
    settings = job.settings
    tables, labels, truth = draw(settings)
    joined = pd.concat([t.reindex(labels.index) for t in tables.values()], axis=1)
    rows = np.column_stack([joined.to_numpy(), labels.to_numpy()])
    spread = rows[:, -1].std()
    rows[:, -1] /= spread
    metrics: Metrics = {}
    found = {
        "ML": _maximum_likelihood(rows),
        "CC": _least_squares(rows[~np.isnan(rows).any(axis=1)]),
    }
    if settings["imputed"]:
        found["MI"] = _multiple_imputation(rows, settings["seed"])
    found = {name: (beta * spread, error * spread) for name, (beta, error) in found.items()}
    try:
        found["VFEM"] = _vfem(tables, labels, metrics)
    except VerticalError:
        metrics["refused"] = 1.0
    for name, (beta, error) in found.items():
        if np.isfinite(beta).all():
            metrics[f"{name}/squared error"] = float(np.mean((beta - truth) ** 2))
        given = np.isfinite(error)
        if given.any():
            inside = np.abs(beta - truth)[given] < 1.96 * error[given]
            metrics[f"{name}/covered"] = float(inside.mean())
    return metrics


def jobs_of(quick: bool) -> list[Job]:
    """List replications: the two cells of the issue, that by the label, then a grid."""
    names = ("parties", "width", "rate", "missing")
    if quick:
        return grid("quick", {names: [(5, 1, 0.4, "mcar")], "seed": [0]}, imputed=True)
    targets = [(10, 2, 0.35, "mcar"), (5, 4, 0.5, "mcar"), (5, 2, 0.35, "mar")]
    seeds = [(seed, seed < 10) for seed in range(100)]
    jobs = grid("targets", {("seed", "imputed"): seeds, names: targets})
    axes = {
        "seed": range(5),
        "parties": (2, 5, 10),
        "rate": (0.2, 0.4, 0.6),
        "missing": ("mcar", "mar", "mnar"),
    }
    return jobs + grid("grid", axes, width=2, imputed=True)


def table(frame: pd.DataFrame) -> str:
    """Return RMSE and coverage (in percent) of all methods by cell, as a table of a page."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (_, k, width, rate, missing), own in frame.groupby(
        ["part", "parties", "width", "rate", "missing"], sort=False
    ):
        wide = own.pivot_table(index="seed", columns="metric", values="value")
        wide = wide.reindex(columns=wide.columns.union(["rounds"]))
        row: dict[str, Any] = {"runs": len(wide)}
        for name in ("VFEM", "ML", "CC", "MI"):
            there = f"{name}/squared error" in wide
            error = np.sqrt(wide[f"{name}/squared error"].mean()) if there else np.nan
            covered = 100 * wide.get(f"{name}/covered", pd.Series([np.nan])).mean()
            row[f"{name} RMSE (covered)"] = f"{error:.3f} ({covered:.1f})" if there else "none"
        row["rounds"] = f"{wide['rounds'].max():.0f}"
        rows[f"{k} x {width}", f"{rate:.0%} {missing}"] = row
    return markdown_table(indexed(rows, ["parties x columns", "missing"]))


def main() -> None:
    """Run what is not kept yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("results/vfem-completed"))
    given = parser.parse_args()
    store = Store(given.output / "replications.jsonl")
    jobs = jobs_of(given.quick)
    frame = run_all(
        jobs, replicate, None, store=store, context=_VERSION, title="VFEM, many parties", workers=0
    )
    print(table(frame))


if __name__ == "__main__":
    main()
