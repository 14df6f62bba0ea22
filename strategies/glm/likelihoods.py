"""Likelihoods of normal labels from opened moments, in the units of columns and labels.

Columns that cannot be used (withheld, constant, or following from others where nothing chooses
among them) have zeros throughout, and a note in the result.
"""

import numpy as np

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from strategies.glm.approximation import Approximation
from strategies.glm.quadratic import Quadratic
from strategies.glm.unseen import Unseen, maps_of, moments_of_sets
from strategies.linear.families import Family
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.moments.fit import Fit
from strategies.linear.moments.identifiable import redundant
from strategies.linear.moments.linear import dependent_columns
from strategies.linear.moments.patterns import Pattern
from strategies.linear.problem import Problem, note, note_on_followers
from strategies.normal.labelled_server import LabelledCompletion
from strategies.vfem.maximum_likelihood import maximise
from strategies.vfem.outcome import note_fit

_FLAT = 1e-12  # a column whose variance is a smaller share of its mean square does not vary

_FAR = 3e5
"""Mean of a column in standard deviations from which on products about 0 hide its variance. One
such column stands for an intercept, and costs no digit; what a second one adds is lost."""


def from_complete_rows(rows: Pattern, standardize: bool, intercept: bool) -> Approximation:
    """Return the likelihood of rows of which every column is observed, the label last."""
    n = rows.n_rows
    mean = rows.sums / n
    center = mean if intercept else np.zeros(len(mean))
    second = rows.about(center)[1] / n
    square = np.diag(rows.products) / n
    variance = np.diag(rows.about(mean)[1]) / n
    constant = variance <= _FLAT * square
    if constant[-1]:
        raise DataError(f"the labels of all {n:,.0f} samples of the fit are the same")
    # Without an intercept, a constant column takes its place.
    flat = constant[:-1] if intercept else square[:-1] == 0.0
    second[:-1][flat] = 0.0
    second[:, :-1][:, flat] = 0.0
    loss = Quadratic(second[:-1, :-1], second[:-1, -1])
    beta = loss.minimum()
    information = np.zeros_like(second)
    information[1:, 1:] = n * second[:-1, :-1]
    information[0, 0] = n
    if not intercept:
        information[0, 1:] = information[1:, 0] = np.where(flat, 0.0, rows.sums[:-1])
    return Approximation(
        n_rows=n,
        center=center[:-1],
        scale=_units(np.where(constant, 1.0, variance)[:-1], flat, standardize),
        information=information,
        estimate=np.concatenate([[center[-1]], beta]),
        noise=float(second[-1, -1] + 2.0 * loss.loss(beta[:, None])[0]),
        intercept=intercept,
    )


def on_all_columns(rows: Pattern, kept: Indices, n_columns: int) -> Pattern:
    """Return the moments with zeros for columns that are not `kept`, in order."""
    at = np.searchsorted(rows.observed, kept)
    sums, products = np.zeros(n_columns), np.zeros((n_columns, n_columns))
    sums[kept] = rows.sums[at]
    products[np.ix_(kept, kept)] = rows.products[np.ix_(at, at)]
    return Pattern(np.arange(n_columns), rows.n_rows, sums, products)


def from_all_rows(fit: Fit, n_rows: float, standardize: bool) -> Approximation:
    """Return the likelihood of rows with blocks missing, all columns being jointly normal."""
    if not fit.converged:
        raise DataError(
            f"the joint normal model did not converge in {fit.iterations} steps: some columns are "
            "hardly ever observed together; use rows='complete', or leave out the party that "
            "shares fewest rows with the others"
        )
    center = fit.mean[:-1]
    # vcov is of the level at zero; here it is that at the mean.
    turn = np.eye(len(fit.vcov))
    turn[0, 1:] = center
    at_center = turn @ fit.vcov @ turn.T
    size = np.sqrt(np.diag(at_center))
    information = np.linalg.inv(at_center / np.outer(size, size)) / np.outer(size, size)
    variance = np.diag(fit.covariance)[:-1]
    return Approximation(
        n_rows=n_rows,
        center=center,
        scale=_units(variance, np.zeros(len(center), dtype=bool), standardize),
        information=fit.noise * (information + information.T) / 2.0,
        estimate=np.concatenate([[fit.mean[-1]], fit.beta]),
        noise=fit.noise,
    )


def _units(variance: Array, flat: Flags, standardize: bool) -> Array:
    return np.where(flat, 0.0, np.sqrt(variance) if standardize else 1.0)


_LEAST_VARIANCE = 1e-9  # in units of standard deviations
_STANDS = 1e-30


def usable_rows(
    opened: OpenedMoments,
    result: Result,
    *,
    intercept: bool,
    penalised: bool,
    more: str,
    noisy: bool = False,
    since: str = "some party lacks them",
) -> Pattern:
    """Return the moments of the complete rows, with zeros for columns that cannot be used."""
    if not opened.held:
        raise DataError("the parties told of no column: each has a value that is too rare")
    rows, n_columns = opened.held[0], opened.n_columns
    _note_left_out(opened.problem, rows, result, since, more)
    used = np.zeros(n_columns + 1, dtype=bool)
    used[rows.observed] = True
    if noisy:  # of noisy sums nothing of the kind below can be told
        return on_all_columns(rows, np.flatnonzero(used), n_columns + 1)
    # In units of standard deviations.
    mean = np.zeros(n_columns + 1)
    mean[rows.observed] = rows.sums / rows.n_rows
    variance = np.diag(rows.about(mean)[1]) / rows.n_rows
    flat = rows.observed[variance < _LEAST_VARIANCE]
    flat = flat[flat < n_columns]  # without the labels
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
        if not intercept:
            follows = _within_about_zero(opened, np.union1d(follows, flat))
        if len(follows):
            note(result, note_on_followers(opened.names(follows)))
            used[follows] = False
    rows = on_all_columns(rows, np.flatnonzero(used), n_columns + 1)
    if not intercept:  # such a column stands for one; sums of 0 would say that it is not used
        rows.products[flat[used[flat]], flat[used[flat]]] += _STANDS * rows.n_rows
    return rows


def _within_about_zero(opened: OpenedMoments, columns: Indices) -> Indices:
    """Return which of these columns follow from others where there is no intercept.

    Without one, columns that add up to 1, as flags do, are told apart.
    """
    rows = opened.held[0]
    own = rows.observed[:-1]
    about = rows.about(np.append(-opened.center[own] / opened.unit[own], 0.0))[1][:-1, :-1]
    return np.intersect1d(columns, own[dependent_columns(about, np.diag(about))])


def of_complete_rows(
    opened: OpenedMoments, rows: Pattern, standardize: bool, intercept: bool
) -> Approximation:
    """Return the likelihood of the complete rows, in the units of columns and labels."""
    center = opened.center
    if not intercept:
        # The moments are of centred columns.
        used = np.diag(rows.products)[:-1] > 0.0
        by = np.where(used, center / opened.unit, 0.0)
        far = np.flatnonzero(np.abs(by) > _FAR)
        if len(far) > 1 and opened.noise is None:
            raise DataError(
                f"columns {opened.names(far)} lie more than {_FAR:,.0f} standard deviations from "
                "0, so that without an intercept they seem to determine each other: subtract a "
                "number near their mean in the tables, or fit with an intercept"
            )
        rows = rows.less(-np.append(by, 0.0))
        center = np.zeros_like(center)
    at = from_complete_rows(rows, standardize, intercept)
    if not standardize:
        # Units here are standard deviations; the penalty wants those of the columns.
        at = at.with_scale(np.where(at.scale > 0.0, 1.0 / opened.unit, 0.0))
    return at.in_units(center, opened.unit, opened.problem.y_center, opened.problem.y_scale)


def of_all_rows(
    opened: OpenedMoments, result: Result, standardize: bool
) -> tuple[Approximation, Array, Array, Flags]:
    """Return the likelihood of all rows, and what `note_fit` takes: means and covariance."""
    maximum = maximise(opened, "full")
    fit, kept, d = maximum.fit, maximum.kept, opened.n_columns
    unknown = note_fit(result, opened, maximum)
    n_rows = sum(p.n_rows for p in maximum.patterns.patterns)
    at = from_all_rows(fit, n_rows, standardize)
    if not standardize:
        at = at.with_scale(1.0 / opened.unit[kept])
    level, parts = maximum.parts[:, 0], maximum.parts[:, 1:]
    mean, covariance = level + parts @ fit.mean[:-1], parts @ fit.covariance[:-1, :-1] @ parts.T
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


def with_followers(rows: Pattern, opened: OpenedMoments) -> Pattern:
    """Return the moments of `usable_rows` with those of columns that follow from others.

    Where the party of these others lacks a row, such a column tells them.
    """
    held = opened.held[0]
    variance = np.diag(held.products) / held.n_rows - (held.sums / held.n_rows) ** 2
    used = np.diag(rows.products)[held.observed] > 0.0
    return on_all_columns(held, held.observed[used | (variance >= _LEAST_VARIANCE)], len(rows.sums))


def _note_left_out(problem: Problem, rows: Pattern, result: Result, since: str, more: str) -> None:
    lacking = len(problem.y) - int(rows.n_rows)
    if lacking:
        held = dict(zip(problem.columns, (~problem.mask).sum(axis=0).tolist(), strict=True))
        note(
            result,
            f"{lacking:,} of {len(problem.y):,} labelled samples are left out of the fit, since "
            f"{since} (each by itself holds: {held}); {more}",
        )


def unseen_of(opened: OpenedMoments, completing: LabelledCompletion, family: Family) -> Unseen:
    """Return who holds the rows of the fit, and the distribution of the columns."""
    center, unit, problem = opened.offered.center, opened.offered.unit, opened.problem
    held, n = np.unique(~problem.mask[opened.groups.group >= 0], axis=0, return_counts=True)
    model = completing.model
    maps, _ = maps_of(model, list(opened.parties.values()), held)
    moved, seen = moments_of_sets(completing, maps, held)
    whole, all_rows = held.all(axis=1), opened.offered.moments
    if whole.any() and not all_rows.withheld.any():  # these are what the others are not
        share, sums = n / n.sum(), all_rows.sums[0] / n.sum() - model.mean
        across = np.outer(all_rows.sums[0] / n.sum(), model.mean)
        products = all_rows.products[0] / n.sum() - across - across.T
        products += np.outer(model.mean, model.mean)
        others = share[~whole]
        moved[whole] = (sums - others @ moved[~whole]) / share[whole]
        squares = seen[~whole] + moved[~whole, :, None] * moved[~whole, None, :]
        products -= np.einsum("p,pij->ij", others, squares)
        seen[whole] = products / share[whole] - np.outer(moved[whole], moved[whole])
    return Unseen(
        family,
        center + unit * model.mean,
        model.covariance * np.outer(unit, unit),
        maps * unit[:, None] / unit,
        n.astype(np.float64),
        moved * unit,
        seen * np.outer(unit, unit),
    )
