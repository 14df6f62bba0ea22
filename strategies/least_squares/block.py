"""One party's columns in a least-squares fit: what it computes from its own rows alone."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from flwr_vertical.arrays import Array, Flags
from strategies.linear.data import RIDGE, constant_or_collinear

# Share of a coefficient's direction that the ridge takes, above which the data do not tell it.
_UNKNOWN = 1e-3
HEAVIEST = 1e4


@dataclass(frozen=True)
class LocalBlock:
    """A party's columns over the rows of a fit, centred if there is an intercept.

    Let ``Z`` be these columns, with one row for each sample of the fit. A sample that the party
    lacks has the row `fill`: zero after centring, as imputing the mean makes it. `Z` itself holds
    the other rows only, `z`.
    """

    z: Array  # (n_held, n_columns): rows of the fit that the party holds
    mean: Array  # (n_columns,): mean of the columns over these rows
    center: Array  # (n_columns,): what was subtracted: the mean, or zero without an intercept
    # (n_columns,): false for columns that are constant; theirs are zero in `z`, and so are their
    # coefficients
    varies: Flags
    n_lacking: int  # Samples of the fit that the party lacks
    # (n_columns, n_columns): upper triangular; ``factor' factor`` is ``Z'Z`` with `ridge` on its
    # diagonal
    factor: Array
    ridge: Array  # (n_columns,): zero unless columns are constant or follow from others
    dependent: Flags  # (n_columns,): which columns these are

    @classmethod
    def of(cls, x: Array, n_lacking: int, intercept: bool) -> "LocalBlock":
        """Centre and factorise the rows that a party holds."""
        mean = x.mean(axis=0)
        center = mean if intercept else np.zeros_like(mean)
        z = x - center
        # Rounding leaves a constant column with a tiny spread.
        varies = (z**2).sum(axis=0) > 1e-20 * (x**2).sum(axis=0)
        z[:, ~varies] = 0.0
        dependent = constant_or_collinear(x, intercept) | ~varies
        ridge = np.zeros_like(mean)
        if dependent.any():
            ridge = np.where(varies, RIDGE * (z**2).sum(axis=0), 1.0)
        lacking = np.sqrt(n_lacking) * np.where(varies, mean - center, 0.0)
        rows = np.vstack([_triangle(z), np.diag(np.sqrt(ridge)), lacking])
        factor = _triangle(rows)
        return cls(z, mean, center, varies, n_lacking, factor, ridge, dependent)

    @property
    def fill(self) -> Array:
        """Row of a sample that the party lacks, shape (n_columns,)."""
        return np.where(self.varies, self.mean - self.center, 0.0)

    @property
    def rank(self) -> int:
        """Number of columns less those that are constant or follow from others."""
        return int((~self.dependent).sum())

    def regress(self, r: Array, rest: float) -> Array:
        """Regress residuals on the own columns, shape (n_columns,).

        Shapes: r (n_held,): residuals of the rows held.
        """
        return self._solve(self.z.T @ r + self.fill * rest)

    def regress_fully(self, r: Array) -> Array:
        """Like `regress` for a fit of rows held only, but without a trace of the ridge."""
        beta = self.regress(r, 0.0)
        for _ in range(3):
            beta = beta + self.regress(r - self.z @ beta, 0.0)
        return beta

    def rows_of(self, x: Array) -> Array:
        """Bring other rows into the coordinates of `z`."""
        return np.where(self.varies, x - self.center, 0.0)

    def explained(self, beta: Array) -> float:
        """Variance of the fit over the rows held."""
        return float(np.var(self.z @ beta))

    def inverse(self) -> Array:
        """Inverse of ``Z'Z`` with ridge, shape (n_columns, n_columns)."""
        return self._solve(np.eye(len(self.ridge)))

    @property
    def unknown(self) -> Flags:
        """Which coefficients the rows leave open, shape (n_columns,)."""
        return np.asarray(np.diag(self.inverse()) * self.ridge > _UNKNOWN)

    @property
    def mean_weight(self) -> float:
        """How far the mean is from zero, in units of its uncertainty, squared; 0 if centred.

        ``n mu' B^-1 mu`` where ``B`` is the centred Gram matrix and n counts the samples of the
        fit; at most `HEAVIEST`, which a constant column exceeds.
        """
        share = self.mean_share
        return share / max(1.0 - share, 1.0 / HEAVIEST)

    @property
    def mean_share(self) -> float:
        """``n mu' (Z'Z)^-1 mu``, from 0 to 1; 0 if centred."""
        n, fill = len(self.z) + self.n_lacking, self.fill
        return float(np.clip(n * fill @ self._solve(fill), 0.0, 1.0))

    def covariance(self, correction: float, mean_weight: float) -> Array:
        """Return the expected block of the inverse Gram matrix of all parties' columns."""
        inverse, n = self.inverse(), len(self.z) + self.n_lacking
        others = max(mean_weight - self.mean_weight, 0.0)
        along = inverse @ self.fill
        pull = n * others / (1.0 + others * (1.0 - self.mean_share))
        return correction * (inverse + pull * np.outer(along, along))

    def pulls(self, rows: Array, correction: float) -> Array:
        """Return what couples the variance of fits of rows to other parties (`joint_leverage`).

        That is ``sqrt(n) mu' B^-1 x`` for every row x, shape (n_rows,).
        """
        n = len(self.z) + self.n_lacking
        along = self._solve(self.fill) / max(1.0 - self.mean_share, 1.0 / HEAVIEST)
        return np.asarray(np.sqrt(correction * n) * (rows @ along))

    def _solve(self, right: Array) -> Array:
        return np.asarray(cho_solve((self.factor, False), right), dtype=np.float64)


def _triangle(rows: Array) -> Array:
    """Return R of a QR decomposition: ``R'R = rows' rows``."""
    return np.asarray(np.linalg.qr(rows, mode="r"), dtype=np.float64)


def quadratic(rows: Array, matrix: Array) -> Array:
    """Return ``x' M x`` for every row x, shape (n_rows,)."""
    return np.asarray(((rows @ matrix) * rows).sum(axis=1))
