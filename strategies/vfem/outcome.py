"""What comes out of a fit of VFEM: coefficients, metrics, notes, and what predicts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical import Model, Result
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.products.row_groups import distinct_rows
from strategies.linear.coefficients import by_name, coefficient_table
from strategies.linear.moments.collect import FitColumns, in_no_group
from strategies.linear.prediction.conditional_regressions import joint_regressions
from strategies.linear.prediction.regressions import Regressions
from strategies.linear.problem import note
from strategies.vfem.maximum_likelihood import FEWEST_JOINT, Maximum, listed

WITHOUT_NOISE = (
    "the fit leaves (almost) no noise: either the columns tell the labels, or too few samples are "
    "held by enough parties for so many columns, and then it says little. So there are no standard "
    "errors, and intervals of predictions are too short"
)


def leaves_no_noise(noise: float, y: Array) -> bool:
    """Tell whether a fit counts as one without noise; labels y (n_labelled,)."""
    return noise <= 1e-6 * float(np.var(y))


@dataclass
class VFEMModel(Model):
    """What the server knows of a fitted model, in label units."""

    strategy = "vfem"

    outcome: str  # ``converged``, ``max iterations`` or ``diverged``
    intercept: float = 0.0
    sigma2: float = float("nan")  # Variance of the noise
    # By party and variable
    coefficients: dict[str, dict[str, float]] = field(default_factory=dict)
    # mean_fit, explained: By party, mean and variance of its fit: what stands in for a missing
    # block
    mean_fit: dict[str, float] = field(default_factory=dict)
    explained: dict[str, float] = field(default_factory=dict)
    level_variance: float = 0.0  # Variance of the estimated level, of predictions at the means
    # Of intercept and coefficients, in the table's order, in label units per unit of the variable
    covariance: Any = None


def fill_in(
    result: Result, opened: FitColumns, found: Maximum, intercept: bool, unknown: Flags
) -> None:
    """Put coefficients, metrics and model into the result, in label units.

    Shapes: unknown (1 + n_columns,): where intercept and coefficients get no standard error.
    """
    problem, fit, unit = opened.problem, found.fit, opened.problem.y_scale
    estimates, errors, lost = (np.full(opened.n_columns, np.nan) for _ in range(3))
    estimates[found.kept] = unit * fit.beta / opened.unit[found.kept]
    beta = np.nan_to_num(estimates)
    # Covariance of (intercept, beta) in label units per unit of the variable.
    change = _in_table_units(opened, found)
    vcov = unit**2 * change @ fit.vcov @ change.T
    told = ~unknown[np.append(0, 1 + found.kept)]
    spread = np.where(told, np.sqrt(np.maximum(np.diag(vcov), 0.0)), np.nan)
    shares = np.where(told, fit.missing_information, np.nan)
    errors[found.kept], lost[found.kept] = spread[1:], shares[1:]
    level = problem.y_center + unit * fit.intercept - float(opened.center @ beta)
    result.coefficients = coefficient_table(
        problem.columns, estimates, errors, level if intercept else None, float(spread[0])
    )
    of_intercept = shares[: int(intercept)]
    result.coefficients["missing_information"] = np.concatenate([of_intercept, lost])
    n, p = opened.n_used, len(found.kept)
    r2 = 1.0 - fit.noise / float(np.mean((problem.y - problem.y.mean() * intercept) ** 2))
    earlier = result.metrics
    result.metrics = {
        "r2": r2,
        "adjusted_r2": 1.0 - (1.0 - r2) * (n - intercept) / max(n - p - intercept, 1),
        "sigma2": fit.noise * unit**2,
        "log_likelihood": fit.log_likelihood - _units(opened, found),
        "n_samples": n,
        "missing_information": float(fit.missing_information[1:].mean()),
        **earlier,
        "iterations": float(fit.iterations),
        "converged": float(fit.converged),
    }
    if found.by_pattern:
        value = result.metrics["log_likelihood"]
        result.history = [{"iteration": fit.iterations, "log_likelihood": value}]
    else:
        del result.metrics["log_likelihood"]  # nothing that was opened tells it
    mean, variance = _party_fits(opened, found, beta)
    held = (~problem.mask).sum(axis=0)
    result.party_metrics = {
        name: {"rows_held": float(rows), "fit_mean": mean[name], "fit_variance": variance[name]}
        for name, rows in zip(opened.parties, held, strict=True)
    }
    result.model = VFEMModel(
        "converged" if fit.converged else "max iterations",
        level if intercept else 0.0,
        fit.noise * unit**2,
        by_name(problem.columns, estimates),
        mean,
        variance,
        0.0,
        vcov if intercept else vcov[1:, 1:],
    )


def _in_table_units(opened: FitColumns, found: Maximum) -> Array:
    """Return what makes (intercept, beta) of standardised columns those of the tables' columns.

    Shapes: returns (n_kept + 1, n_kept + 1): for standardised labels.
    """
    center, unit = opened.center[found.kept], opened.unit[found.kept]
    change = np.diag(np.append(1.0, 1.0 / unit))
    change[0, 1:] = -center / unit
    return change


def _units(opened: FitColumns, found: Maximum) -> float:
    """Return what the units of columns and labels take off the log likelihood."""
    logs = np.append(np.log(opened.unit[found.kept]), np.log(opened.problem.y_scale))
    return float(np.diag(found.patterns.joint_rows()) @ logs)


def _party_fits(
    opened: FitColumns, found: Maximum, beta: Array
) -> tuple[dict[str, float], dict[str, float]]:
    """Return mean and variance of each party's fit under the model, in label units."""
    mean, variance = {}, {}
    center = opened.center.copy()
    center[found.kept] += opened.unit[found.kept] * found.fit.mean[:-1]
    for name, own in opened.parties.items():
        inside = (found.kept >= own.start) & (found.kept < own.stop)
        scaled = beta[found.kept[inside]] * opened.unit[found.kept[inside]]
        covariance = found.fit.covariance[:-1, :-1][np.ix_(inside, inside)]
        mean[name] = float(center[own] @ beta[own])
        variance[name] = float(scaled @ covariance @ scaled)
    return mean, variance


def regressions_of(opened: FitColumns, found: Maximum) -> Regressions:
    """Return the label's regression for each set of parties, in the units of the tables."""
    problem = opened.problem
    occurring = ~distinct_rows(np.vstack([problem.mask, problem.free_mask]))[0]
    standard = joint_regressions(
        found.patterns, found.model, found.fit, opened.widths, occurring, found.parts
    )
    in_label_units = standard.in_units(problem.y_center, problem.y_scale)
    return in_label_units.of_columns(opened.center, opened.unit)


def note_fit(result: Result, opened: FitColumns, found: Maximum, intercept: bool = True) -> Flags:
    """Say what could not be estimated, and why.

    Shapes: returns (1 + n_columns,): of the intercept and all columns: True where the rows do not
    tell the coefficient, or how exactly, so that there shall be no standard error.
    """
    texts = []
    if len(found.unseen) and not found.by_pattern:  # else opening sums has said so
        texts.append(in_no_group(opened.names(found.unseen)))
    all_columns = np.arange(opened.n_columns)
    redundant = np.setdiff1d(np.setdiff1d(all_columns, found.kept), found.unseen)
    told = [
        own.start + opened.problem.columns[name].index(column)
        for name, own in opened.parties.items()
        for column in opened.problem.collinear[name]
    ]
    redundant = np.setdiff1d(redundant, told)
    if len(redundant):
        texts.append(
            f"columns {opened.names(redundant)} do not vary, or follow from columns of other "
            "parties; they are left out and have no coefficient"
            + ". The joint model has means of its own: columns that stand for an intercept are of "
            "no use in it; set intercept=True" * (not intercept)
        )
    if not found.fit.converged and found.by_pattern:
        texts.append("not converged: the likelihood is flat; the data hardly tell some covariances")
    if without_noise := leaves_no_noise(found.fit.noise, opened.problem.y):
        texts.append(f"{WITHOUT_NOISE}; noise_prior=2 stabilises such a fit")
    if found.fit.by_em:
        texts.append(
            f"{len(found.kept)} columns are too many for Newton's method: fitted by EM alone. "
            "Standard errors and intervals take mean and covariance of the columns as known; where "
            "much is missing they are too small"
        )
    unknown = np.zeros(1 + opened.n_columns, dtype=bool)
    unknown[np.append(0, 1 + found.kept)] = found.not_identified(_in_table_units(opened, found))
    unknown |= without_noise
    if found.unidentified:
        names = opened.names(np.flatnonzero(unknown[1:]))
        which = (
            f"The coefficients of {names} depend on that: they have estimates, but no standard "
            "errors and intervals"
            if names
            else "No coefficient depends on that by more than a tenth of its standard error"
        )
        texts.append(
            f"the parties {listed(found.unidentified)} hold fewer than {FEWEST_JOINT} rows "
            "together, so the rows do not tell how columns of the one go with columns of the "
            f"other. They are taken as independent given all other columns and the label. {which}. "
            "Intervals of predictions for samples that both parties hold assume it, too"
        )
    for text in texts:
        note(result, text)
    return unknown
