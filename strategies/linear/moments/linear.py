"""Least squares from moments: the normal equations of one set of rows."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import DataError
from strategies.linear.moments.patterns import Pattern

_DEPENDENT = 1e-8
"""Of a column's squares: less about others is rounding. With one limb, products of two parties are
of columns rounded to some 20 bits, and those of one party are not: copies differ by some 1e-9."""


@dataclass(frozen=True)
class LinearFit:
    """Ordinary least squares of the label on columns."""

    n_rows: float  # Rows of the fit
    level: float  # Fit at the columns' means; 0 without an intercept
    means: Array  # (n_columns,): of the columns
    beta: Array  # (n_columns,): 0 where a column is dependent
    dependent: Flags  # (n_columns,): columns that are constant or follow from those before them
    # (n_columns, n_columns): of the columns over the rows (about zero without an intercept)
    covariance: Array
    # (n_columns, n_columns): covariance of the coefficients over the noise variance; 0 for
    # dependent columns
    inverse: Array
    rss: float  # Sum of squares of the residuals
    tss: float  # That of the labels, about their mean with an intercept
    has_intercept: bool
    # (n_columns + 1, n_columns + 1): what noise on the moments adds to the covariance of
    # (intercept, coefficients)
    added: Array | None = None

    @property
    def n_parameters(self) -> int:
        """Coefficients that the rows tell, with the intercept."""
        return int((~self.dependent).sum()) + self.has_intercept

    @property
    def noise(self) -> float:
        """Noise variance, unbiased."""
        return self.rss / max(self.n_rows - self.n_parameters, 1.0)

    @property
    def intercept(self) -> float:
        """Fit where all columns are zero; 0 without an intercept."""
        return self.level - float(self.means @ self.beta) * self.has_intercept

    @property
    def vcov(self) -> Array:
        """Covariance matrix of (intercept, beta), shape (n_columns + 1, n_columns + 1)."""
        mean = self.means * self.has_intercept
        side = -self.inverse @ mean
        corner = (1.0 / self.n_rows + mean @ self.inverse @ mean) * self.has_intercept
        found = np.block([[np.array([[corner]]), side[None, :]], [side[:, None], self.inverse]])
        sampling = np.asarray(self.noise * found, dtype=np.float64)
        return sampling if self.added is None else sampling + self.added


def least_squares(rows: Pattern, intercept: bool) -> LinearFit:
    """Solve the normal equations."""
    n, d = rows.n_rows, len(rows.sums)
    mean = rows.sums / n if intercept else np.zeros(d)
    products = rows.products - n * np.outer(mean, mean)
    tss = float(products[-1, -1])
    if tss <= 1e-14 * float(rows.products[-1, -1]):
        raise DataError(f"all labels of the {int(n):,} rows of the fit are the same")
    gram, side = products[:-1, :-1], products[:-1, -1]
    length = np.diag(rows.products)[:-1]
    dependent = dependent_columns(gram, length)
    used = np.flatnonzero(~dependent)
    beta, inverse = np.zeros(d - 1), np.zeros((d - 1, d - 1))
    if len(used):
        scale = 1.0 / np.sqrt(np.diag(gram)[used])
        factor = cho_factor(gram[np.ix_(used, used)] * np.outer(scale, scale))
        beta[used] = scale * cho_solve(factor, scale * side[used])
        inverse[np.ix_(used, used)] = cho_solve(factor, np.eye(len(used))) * np.outer(scale, scale)
    rss = tss - 2.0 * float(beta @ side) + float(beta @ gram @ beta)
    return LinearFit(
        n_rows=n,
        level=float(mean[-1]),
        means=rows.sums[:-1] / n,
        beta=beta,
        dependent=dependent,
        covariance=gram / n,
        inverse=inverse,
        rss=max(rss, 0.0),
        tss=tss,
        has_intercept=intercept,
    )


def dependent_columns(gram: Array, length: Array, least: float = _DEPENDENT) -> Flags:
    """Tell which columns are constant or follow from those before them.

    Shapes: gram (n_columns, n_columns): their products, centred if there is an intercept; length
    (n_columns,): their sums of squares before centring, of which `least` is to be left.
    """
    n = len(gram)
    dependent = np.zeros(n, dtype=bool)
    root = np.zeros((n, n))  # rows of a Cholesky factor, zero for dependent columns
    for j in range(n):
        root[j, :j] = 0.0
        for k in np.flatnonzero(~dependent[:j]):
            root[j, k] = (gram[j, k] - root[j, :k] @ root[k, :k]) / root[k, k]
        left = gram[j, j] - root[j, :j] @ root[j, :j]
        if left <= least * max(length[j], gram[j, j]) or left <= 0.0:
            dependent[j], root[j] = True, 0.0
        else:
            root[j, j] = np.sqrt(left)
    return dependent
