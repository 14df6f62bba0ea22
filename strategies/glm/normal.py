"""The likelihood of normal labels, from moments of columns and labels.

Where all rows are complete, their second moments are the likelihood. Where blocks of columns are
missing, columns and label are jointly normal: the maximum over all rows and its observed
information (`fit_normal`) take their place.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from strategies.glm.approximation import Approximation
from strategies.glm.quadratic import Quadratic
from strategies.linear.moments import Fit, Pattern

_FLAT = 1e-12  # a column whose variance is a smaller share of its mean square does not vary


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


def shifted(rows: Pattern, by: Array) -> Pattern:
    """Return the moments of rows plus a vector, array of shape (n_columns,)."""
    sums, products = rows.about(-by)
    return replace(rows, sums=sums, products=products)


def on_all_columns(rows: Pattern, kept: npt.NDArray[np.int64], n_columns: int) -> Pattern:
    """Return the moments with zeros for columns that are left out.

    Shapes: kept (n_kept,): columns that stay, ascending, by their numbers among all; all are
    observed.
    """
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


def _units(variance: Array, flat: npt.NDArray[np.bool_], standardize: bool) -> Array:
    return np.where(flat, 0.0, np.sqrt(variance) if standardize else 1.0)
