"""Likelihoods of normal labels from opened moments, in the units of columns and labels.

Columns that cannot be used (withheld, constant, or following from others where nothing chooses
among them) have zeros throughout, and a note in the result.
"""

import numpy as np

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import DataError
from strategies.glm.approximation import Approximation
from strategies.glm.normal import from_all_rows, from_complete_rows, on_all_columns, shifted
from strategies.least_squares.baseline import note
from strategies.linear import Problem
from strategies.linear.moments import OpenedMoments, Pattern
from strategies.linear.moments.identifiable import redundant
from strategies.vfem.maximum_likelihood import maximise
from strategies.vfem.run import note_fit

_FLAT = 1e-9  # variance in units of standard deviations


def usable_rows(
    opened: OpenedMoments,
    result: Result,
    *,
    intercept: bool,
    penalised: bool,
    more: str,
    noisy: bool = False,
) -> Pattern:
    """Return the moments of the complete rows, with zeros for columns that cannot be used."""
    if not opened.held:
        raise DataError("the parties told of no column: each has a value that is too rare")
    rows, n_columns = opened.held[0], opened.n_columns
    _note_left_out(opened.problem, rows, result, more)
    used = np.zeros(n_columns + 1, dtype=bool)
    used[rows.observed] = True
    if noisy:  # of noisy sums nothing of the kind below can be told
        return on_all_columns(rows, np.flatnonzero(used), n_columns + 1)
    # In units of standard deviations.
    variance = np.diag(rows.about(_mean_of(rows, n_columns + 1))[1]) / rows.n_rows
    flat = rows.observed[variance < _FLAT]
    if len(flat) and intercept:
        note(
            result,
            f"columns {opened.names(flat)} do not vary over the samples of the fit; they are left "
            "out and have no coefficient",
        )
        used[flat] = False
    if not penalised:
        # Without a penalty nothing chooses among columns that follow from each other.
        follows = np.setdiff1d(np.flatnonzero(redundant(opened.patterns)), flat)
        if len(follows):
            note(
                result,
                f"columns {opened.names(follows)} follow from others; they are left out and have "
                "no coefficient",
            )
            used[follows] = False
    return on_all_columns(rows, np.flatnonzero(used), n_columns + 1)


def _mean_of(rows: Pattern, n_columns: int) -> Array:
    mean = np.zeros(n_columns)
    mean[rows.observed] = rows.sums / rows.n_rows
    return mean


def of_complete_rows(
    opened: OpenedMoments, rows: Pattern, standardize: bool, intercept: bool
) -> Approximation:
    """Return the likelihood of the complete rows, in the units of columns and labels."""
    center = opened.center
    if not intercept:
        # The moments are of centred columns.
        used = np.diag(rows.products)[:-1] > 0.0
        rows = shifted(rows, np.append(np.where(used, center / opened.unit, 0.0), 0.0))
        center = np.zeros_like(center)
    at = from_complete_rows(rows, standardize, intercept)
    if not standardize:
        # Units here are standard deviations; the penalty wants those of the columns.
        at = at.with_scale(np.where(at.scale > 0.0, 1.0 / opened.unit, 0.0))
    return at.in_units(center, opened.unit, opened.problem.y_center, opened.problem.y_scale)


def of_all_rows(
    opened: OpenedMoments, result: Result, standardize: bool
) -> tuple[Approximation, Array, Array, Flags]:
    """Return the likelihood of all rows, and mean and covariance of the columns.

    The last says which of intercept and coefficients no rows tell, see `note_fit`.
    """
    maximum = maximise(opened, "full")
    fit, kept, d = maximum.fit, maximum.kept, opened.n_columns
    unknown = note_fit(result, opened, maximum)
    n_rows = sum(p.n_rows for p in maximum.patterns.patterns)
    at = from_all_rows(fit, n_rows, standardize)
    if not standardize:
        at = at.with_scale(1.0 / opened.unit[kept])
    mean, covariance = np.zeros(d), np.zeros((d, d))
    mean[kept], covariance[np.ix_(kept, kept)] = fit.mean[:-1], fit.covariance[:-1, :-1]
    problem, center, unit = opened.problem, opened.center, opened.unit
    return (
        at.on_all_columns(kept, d).in_units(center, unit, problem.y_center, problem.y_scale),
        center + unit * mean,
        covariance * np.outer(unit, unit),
        unknown,
    )


def moments_of(rows: Pattern, opened: OpenedMoments) -> tuple[Array, Array]:
    """Return mean and covariance of the columns in their units."""
    mean = rows.sums / rows.n_rows
    covariance = rows.about(mean)[1][:-1, :-1] / rows.n_rows
    return (
        opened.center + opened.unit * mean[:-1],
        covariance * np.outer(opened.unit, opened.unit),
    )


def _note_left_out(problem: Problem, rows: Pattern, result: Result, more: str) -> None:
    lacking = len(problem.y) - int(rows.n_rows)
    if lacking:
        held = dict(zip(problem.columns, (~problem.mask).sum(axis=0).tolist(), strict=True))
        note(
            result,
            f"{lacking:,} of {len(problem.y):,} labelled samples are left out of the fit, since "
            f"some party lacks them (each by itself holds: {held}); {more}",
        )
