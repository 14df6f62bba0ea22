"""From the parties' last answers to the result that people read."""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical import Federation, Model, Result
from flwr_vertical.alignment import Alignment
from strategies.linear import Problem, coefficient_table
from strategies.linear.prediction import Regressions, keep_and_predict
from strategies.vfem.inference import Estimates
from strategies.vfem.rank_check import RankCheck
from strategies.vfem.solver import Solver

logger = logging.getLogger("flwr_vertical")

LEVEL = 0.95


@dataclass
class VFEMModel(Model):
    """What the server knows of a fitted model, in label units."""

    strategy = "vfem"

    outcome: str  # ``converged``, ``max iterations``, ``stalled`` or ``diverged``
    intercept: float = 0.0  # Intercept and variance of the noise
    sigma2: float = float("nan")  # Intercept and variance of the noise
    # By party and variable
    coefficients: dict[str, dict[str, float]] = field(default_factory=dict)
    # mean_fit, explained: By party, mean and variance of its fit: what stands in for a missing
    # block
    mean_fit: dict[str, float] = field(default_factory=dict)
    explained: dict[str, float] = field(default_factory=dict)
    level_variance: float = 0.0  # Variance of the estimated level, of predictions at the means
    # Of intercept and coefficients, in the table's order, where standard errors were worked out
    # at the server (``gram``, ``sketch``); in label units per unit of the variable
    covariance: Any = None


def fill_result(
    result: Result,
    federation: Federation,
    alignment: Alignment,
    problem: Problem,
    solver: Solver,
    estimates: Estimates,
    intercept: bool,
) -> None:
    """Put coefficients, metrics, predictions and model into the result."""
    told, estep, unit = estimates.total.public, solver.estep, problem.y_scale
    names = federation.parties
    beta = {name: unit * told[name]["beta"] for name in names}
    errors = None
    if estimates.intercept_variance is not None:
        unknown = {name: np.full(len(beta[name]), np.nan) for name in names}
        errors = {name: unit * told[name].get("std_error", unknown[name]) for name in names}
    # Columns were centred for the computation; the intercept takes that back.
    offset = sum(float(told[name]["offset"]) for name in names)
    level = problem.y_center + unit * (estep.intercept - offset) if intercept else None
    result.coefficients = coefficient_table(
        problem.columns,
        beta,
        errors,
        level,
        None if errors is None else unit * float(np.sqrt(estimates.intercept_variance or 0.0)),
        LEVEL,
    )
    n, p = len(problem.y), problem.n_columns
    spread = float(np.mean((problem.y - problem.y.mean() * intercept) ** 2))
    r2 = 1.0 - estep.sigma2 / spread
    earlier = result.metrics
    result.metrics = {  # what people look at comes first
        "r2": r2,
        "adjusted_r2": 1.0 - (1.0 - r2) * (n - intercept) / max(n - p - intercept, 1),
        "sigma2": estep.sigma2 * unit**2,
        "log_likelihood": estep.log_likelihood + solver.constant,
        "n_samples": float(n),
        **earlier,
        "level_variance": unit**2 * (estimates.level_variance or 0.0),
    }
    result.party_metrics = {
        name: {
            "rows_held": float(held),
            "fit_mean": unit * (float(told[name]["mean_fit"]) + float(told[name]["offset"])),
            "fit_variance": float(told[name]["explained"]) * unit**2,
        }
        for name, held in zip(names, estep.patterns.n_observed, strict=True)
    }
    result.model = VFEMModel(
        solver.outcome,
        level or 0.0,
        estep.sigma2 * unit**2,
        {
            name: dict(zip(problem.columns[name], map(float, beta[name]), strict=True))
            for name in names
        },
        {
            name: unit * (float(told[name]["mean_fit"]) + float(told[name]["offset"]))
            for name in names
        },
        {name: unit**2 * float(told[name]["explained"]) for name in names},
        unit**2 * (estimates.level_variance or 0.0),
        _covariance(result, estimates),
    )
    keep_and_predict(
        federation,
        alignment,
        result,
        _regressions(
            result.model, problem, {name: told[name].get("spread", 0.0) for name in names}
        ),
        problem.free,
        problem.free_mask,
    )


def _regressions(model: VFEMModel, problem: Problem, spread: dict[str, float]) -> Regressions:
    """Return the one regression: columns of different parties are uncorrelated in this model."""
    names = list(model.coefficients)
    added = problem.y_scale**2 * np.array([spread[name] for name in names])
    return Regressions.additive(
        [len(model.coefficients[name]) for name in names],
        model.intercept,
        np.array([value for name in names for value in model.coefficients[name].values()]),
        np.array([model.mean_fit[name] for name in names]),
        np.array([model.explained[name] for name in names]),
        model.sigma2,
        leverage=model.level_variance + float(added.sum()),
        absent_leverage=added,
    )


def _covariance(result: Result, estimates: Estimates) -> Any:
    """Bring the covariance of standardised coefficients into the units of the table."""
    if estimates.covariance is None or result.coefficients is None:
        return None
    errors = result.coefficients["std_error"].to_numpy()
    own = estimates.covariance[len(estimates.covariance) - len(errors) :]
    own = own[:, len(estimates.covariance) - len(errors) :]
    units = errors / np.sqrt(np.diag(own))
    return own * np.outer(units, units)


def note_ranks(check: RankCheck, result: Result) -> None:
    """Report the check of rank correlations between parties."""
    if check.n_pairs_checked:
        result.metrics["rank_correlation_rms"] = check.root_mean_square
    else:
        result.notes.append(
            "correlations between parties were not checked: any two share too few samples"
        )
    if check.warning:
        logger.warning("%s", check.warning)
        result.notes.append(check.warning)
