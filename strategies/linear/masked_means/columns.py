"""Columns of a fit by masked means, in the units in which the server searches."""

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.products import Moments
from strategies.linear.masked_means.evaluate import MaskedMeans, Placed
from strategies.linear.moments.linear import dependent_columns

_OWN = 1e-5
"""Of a column's variance, what is to be left given those before it: coefficients a hundred times as
large reach so far that sums of means are no longer told, and seem to separate labels."""


class EvaluatedColumns:
    """Columns of a fit in units of their standard deviations, without those that do not vary.

    Without a ridge nothing chooses among columns that follow from each other: the last of them are
    left out, too, and those that are known to follow by more than these moments, `follows`.
    """

    follows: Flags  # (n_columns,): which ones are left out since they follow from those before them

    def __init__(
        self,
        means: MaskedMeans,
        opened: Moments,
        n_rows: int,
        intercept: bool,
        ridge: Array | float,
        units: Array | None,
        follows: Flags | None = None,
    ) -> None:
        self.means, self._intercept, self.evaluations = means, intercept, 0
        self._mean, second = opened.sums[0] / n_rows, opened.products[0] / n_rows
        self._covariance = second - np.outer(self._mean, self._mean)
        spread = np.sqrt(np.maximum(np.diag(self._covariance), 0.0))
        # What moments leave of a constant column is rounding.
        self._varies = spread > 1e-6 * np.sqrt(np.maximum(np.diag(second), 1e-300))
        self._varies &= ~opened.withheld[0]
        self.follows = np.zeros(len(spread), dtype=bool)
        if not np.any(ridge):
            if follows is not None:
                self.follows = self._varies & follows
            own = np.flatnonzero(self._varies & ~self.follows)
            self.follows[own] = _following(self._covariance, own)
            if not intercept:  # columns may add up to 1 then
                self.follows[own] &= _following(second, own)
            self._varies &= ~self.follows
        self._kept = kept = np.flatnonzero(self._varies)
        if not len(kept):
            raise DataError("no column of any party varies over the samples of the fit")
        self._scale = spread[kept]
        self._second = self._in_units(self._covariance if intercept else second)
        self.ridge = np.broadcast_to(ridge, spread.shape)[kept].copy()
        if units is not None:
            self.ridge *= (units[kept] / self._scale) ** 2

    def _in_units(self, products: Array) -> Array:
        """Return products of the columns that vary, in their units."""
        kept = np.ix_(self._kept, self._kept)
        return np.asarray(products[kept] / np.outer(self._scale, self._scale))

    def _raw(self, slopes: Array) -> Array:
        """Return coefficients of all columns, in the columns' units."""
        beta = np.zeros(len(self._mean))
        beta[self._kept] = slopes / self._scale
        return beta

    def _place(self, level: float, slopes: Array) -> tuple[float, Placed]:
        """Put linear predictors on the circle; their level, columns being centred."""
        beta = self._raw(slopes)
        if not self._intercept:  # the parties centre their columns
            level = float(self._mean @ beta)
        return level, self.means.place(beta)


def _following(products: Array, columns: Indices) -> Flags:
    size = np.sqrt(np.diag(products)[columns])
    scaled = products[np.ix_(columns, columns)] / np.outer(size, size)
    return dependent_columns(scaled, np.ones(len(columns)), _OWN)
