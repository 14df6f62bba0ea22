"""Models of the covariance of all columns: what is free in it.

The label is the last column. A model maps free parameters to a covariance and says how each
parameter moves it, so that one fit serves all models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices

_CYCLES = 1000
_EXACT = 1e-12  # of correlations


class FullCovariance:
    """Any covariance; where the rows do not tell an element, that of the inverse is zero.

    Rows of no pattern with both columns tell nothing of their covariance. Of all covariances with
    the same other elements, the one with zeros there in its inverse has the largest determinant
    (Dempster, 1972): two such columns are independent given all others, the label among them.

    Shapes: free (n_columns, n_columns): symmetric; False where the element of the inverse is held
    at zero.
    """

    def __init__(self, free: Flags) -> None:
        free = free | np.eye(len(free), dtype=bool)
        self.n_columns = len(free)
        self._rows, self._columns = np.nonzero(np.tril(free))
        rows, columns = np.nonzero(np.tril(~free))
        self.implied = rows, columns
        self._cliques = _cliques(free)

    def nearest(self, covariance: Array) -> Array:
        """Return parameters of a member of the family close to a positive definite matrix.

        Of the covariance of complete data, they are those of maximum likelihood: also with zeros in
        the inverse.
        """
        return np.asarray(covariance[self._rows, self._columns])

    def covariance(self, parameters: Array) -> Array:
        """Return the matrix with these elements, all others as the zeros of its inverse imply."""
        found = np.zeros((self.n_columns, self.n_columns))
        found[self._rows, self._columns] = parameters
        found[self._columns, self._rows] = parameters
        return completed(found, self._cliques) if len(self.implied[0]) else found

    def directions(self, parameters: Array) -> Array:
        """Return one symmetric unit matrix for each element, and how implied elements follow."""
        count = np.arange(len(parameters))
        found = np.zeros((self.n_columns, self.n_columns, len(parameters)))
        found[self._rows, self._columns, count] = 1.0
        found[self._columns, self._rows, count] = 1.0
        i, j = self.implied
        if len(i):
            # The inverse P stays zero there: (P dSigma P)_ij = 0.
            inverse = np.linalg.inv(self.covariance(parameters))
            r, c = self._rows, self._columns
            side = inverse[np.ix_(i, r)] * inverse[np.ix_(j, c)]
            side += (inverse[np.ix_(i, c)] * inverse[np.ix_(j, r)]) * (r != c)
            own = inverse[np.ix_(i, i)] * inverse[np.ix_(j, j)]
            own += inverse[np.ix_(i, j)] * inverse[np.ix_(j, i)]
            found[i, j] = found[j, i] = -np.linalg.solve(own, side)
        return found

    def curvature(self, parameters: Array, gradient: Array) -> Array:
        """Return zero: the covariance is linear in its elements where there is a gradient."""
        return np.zeros((len(parameters), len(parameters)))


def _cliques(free: Flags) -> list[Indices]:
    """Return sets of columns, all free among each other, that have every free pair in one."""
    left = free.copy()
    found = []
    while left.any():
        i, j = np.argwhere(left)[0]
        own = [i] if i == j else [i, j]
        for k in np.flatnonzero(free[i] & free[j]):
            if k not in own and free[k, own].all():
                own.append(k)
        clique = np.sort(np.array(own, dtype=np.int64))
        left[np.ix_(clique, clique)] = False
        found.append(clique)
    return found


def completed(covariance: Array, cliques: Sequence[Indices]) -> Array:
    """Give a covariance the elements that make its inverse zero outside of cliques.

    Iterative proportional scaling (Speed and Kiiveri, 1986): a clique gets its own covariance, and
    the regression of all other columns on it stays.

    Shapes: covariance (n_columns, n_columns): its elements outside of cliques are not read.
    """
    scale = np.sqrt(np.diag(covariance))
    wanted = covariance / np.outer(scale, scale)
    for clique in cliques:
        np.linalg.cholesky(wanted[np.ix_(clique, clique)])
    found = np.eye(len(covariance))
    for _ in range(_CYCLES):
        largest = 0.0
        for clique in cliques:
            here = np.ix_(clique, clique)
            gap = wanted[here] - found[here]
            largest = max(largest, float(np.abs(gap).max()))
            lift = np.linalg.solve(found[here], found[clique]).T
            found = found + lift @ gap @ lift.T
        if largest < _EXACT:
            return np.asarray((found + found.T) / 2.0 * np.outer(scale, scale))
    raise np.linalg.LinAlgError("no positive definite matrix has these elements")


class RegressionCovariance:
    """Any covariance of the columns, with zeros where stated; the label is linear in all of them.

    Parameters: the elements of the columns' covariance, the coefficients beta, the noise variance.
    Methods are those of `FullCovariance`.

    Shapes: free (n_columns - 1, n_columns - 1): symmetric, without the label; False where a
    covariance is held at zero.
    """

    implied = np.nonzero(np.zeros((0, 0)))  # By zeros in the inverse: no element

    def __init__(self, free: Flags) -> None:
        self.n_columns = len(free) + 1
        self._rows, self._columns = np.nonzero(np.tril(free | np.eye(len(free), dtype=bool)))

    @property
    def coefficients(self) -> slice:
        """Where beta stands among the parameters."""
        return slice(len(self._rows), len(self._rows) + self.n_columns - 1)

    def split(self, parameters: Array) -> tuple[Array, Array, float]:
        """Return the columns' covariance, beta and the noise variance."""
        p, n_blocks = self.n_columns - 1, len(self._rows)
        inner = np.zeros((p, p))
        inner[self._rows, self._columns] = parameters[:n_blocks]
        inner[self._columns, self._rows] = parameters[:n_blocks]
        return inner, parameters[n_blocks:-1], float(parameters[-1])

    def nearest(self, covariance: Array) -> Array:
        """Keep the blocks, and the regression of the label on all columns."""
        inner, beta = (
            covariance[:-1, :-1],
            np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1]),
        )
        noise = covariance[-1, -1] - beta @ covariance[:-1, -1]
        return np.concatenate([inner[self._rows, self._columns], beta, [noise]])

    def covariance(self, parameters: Array) -> Array:
        """Return the covariance that the parameters imply."""
        inner, beta, noise = self.split(parameters)
        fitted = inner @ beta
        top = np.column_stack([inner, fitted])
        return np.vstack([top, np.append(fitted, beta @ fitted + noise)])

    def directions(self, parameters: Array) -> Array:
        """Return how blocks, coefficients and noise move the covariance."""
        inner, beta, _ = self.split(parameters)
        p, n_blocks = self.n_columns - 1, len(self._rows)
        found = np.zeros((p + 1, p + 1, len(parameters)))
        for k, (i, j) in enumerate(zip(self._rows, self._columns, strict=True)):
            found[i, j, k] = found[j, i, k] = 1.0
            found[i, p, k] += beta[j]
            found[p, i, k] += beta[j]
            found[p, p, k] = beta[i] * beta[j] * (1.0 if i == j else 2.0)
            if i != j:
                found[j, p, k] += beta[i]
                found[p, j, k] += beta[i]
        fitted = inner @ beta
        found[:p, p, n_blocks:-1] = inner
        found[p, :p, n_blocks:-1] = inner
        found[p, p, n_blocks:-1] = 2.0 * fitted
        found[p, p, -1] = 1.0
        return found

    def curvature(self, parameters: Array, gradient: Array) -> Array:
        """Return the second derivatives, of coefficients with blocks and with each other."""
        inner, beta, _ = self.split(parameters)
        p, n_blocks = self.n_columns - 1, len(self._rows)
        found = np.zeros((len(parameters), len(parameters)))
        by_label, corner = gradient[:p, p], gradient[p, p]
        found[n_blocks:-1, n_blocks:-1] = 2.0 * corner * inner
        for k, (i, j) in enumerate(zip(self._rows, self._columns, strict=True)):
            for a, b in {(i, j), (j, i)}:
                # d Sigma_ay = beta_b, d Sigma_yy = beta_a beta_b for the element (a, b).
                found[k, n_blocks + b] += 2.0 * by_label[a] + 2.0 * corner * beta[a]
        found[n_blocks:-1, :n_blocks] = found[:n_blocks, n_blocks:-1].T
        return found


CovarianceModel: TypeAlias = FullCovariance | RegressionCovariance


class BlockCovariance(RegressionCovariance):
    """Columns of different parties uncorrelated; the label is linear in all of them.

    The model of VFEM (Tang, Wang, Feng and Li).
    """

    def __init__(self, widths: Sequence[int]) -> None:
        owner = np.repeat(np.arange(len(widths)), widths)
        super().__init__(owner[:, None] == owner[None, :])


@dataclass(frozen=True)
class NoisePrior:
    """Prior of the noise variance, as if so many more residuals were known.

    For models whose last parameter that variance is (`RegressionCovariance`).
    """

    weight: float  # How many residuals
    level: float  # Their mean square

    def log_density(self, noise: float) -> float:
        """Return the logarithm of the density, without constants."""
        return -0.5 * self.weight * (float(np.log(noise)) + self.level / noise)

    def score(self, noise: float) -> float:
        """Return its derivative."""
        return 0.5 * self.weight * (self.level / noise - 1.0) / noise

    def information(self, noise: float, observed: bool = False) -> float:
        """Return minus its second derivative if `observed`, else what is never negative."""
        curvature = 2.0 * self.level / noise - 1.0 if observed else 1.0
        return 0.5 * self.weight * curvature / noise**2

    def maximise(self, noise: float, n_rows: float) -> float:
        """Return the best variance where that of `n_rows` residuals is `noise`."""
        return (n_rows * noise + self.weight * self.level) / (n_rows + self.weight)


@dataclass(frozen=True)
class Through:
    """The constraint, for a model that has the coefficients among its parameters."""

    point: Array  # (n_columns - 1,): values of the columns at which the regression is zero
    model: RegressionCovariance  # The model that is fitted

    def mean(self, mean: Array, parameters: Array) -> Array:
        """Return the mean with the label's as the constraint has it, shape (n_columns,)."""
        gap = mean[:-1] - self.point
        return np.append(mean[:-1], gap @ parameters[self.model.coefficients])

    def jacobian(self, mean: Array, parameters: Array) -> Array:
        """Return derivatives of (mean, parameters) by what is free: all but the label's mean."""
        p, n_parameters = len(self.point), len(parameters)
        found = np.zeros((p + 1 + n_parameters, p + n_parameters))
        found[:p, :p] = np.eye(p)
        found[p, :p] = parameters[self.model.coefficients]
        found[p, p:][self.model.coefficients] = mean[:-1] - self.point
        found[p + 1 :, p:] = np.eye(n_parameters)
        return found

    def curvature(self, pull: float, parameters: Array) -> Array:
        """Return second derivatives of the label's mean, times the score for it."""
        p, n_parameters = len(self.point), len(parameters)
        found = np.zeros((p + n_parameters, p + n_parameters))
        at = np.arange(n_parameters)[self.model.coefficients] + p
        found[np.arange(p), at] = found[at, np.arange(p)] = pull
        return found
