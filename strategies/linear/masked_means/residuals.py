"""Sums of squared residuals that nobody sees: robust errors, dispersion, a test of it.

Of a row the server knows label y and weight w. A squared residual is ``y^2 - 2 y mu + mu^2``: three
functions of the linear predictor, of which the row's factors are the server's alone. They enter
its sines and cosines (`ByRow`), so that a party sees neither labels nor weights. The sums:

* ``sum of w^2 (y - mu)^2 [1, x][1, x]'``, the middle of the sandwich (White, 1982);
* ``sum of w (y - mu)^2 / V(mu)``, Pearson's chi-squared, from ``exp(t)`` and ``exp(-t)``;
* ``sum of mu^2``, for the test of overdispersion of counts (Dean and Lawless, 1989).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from strategies.linear.families import Family
from strategies.linear.masked_means.evaluate import Bound, MaskedMeans, Placed
from strategies.linear.masked_means.fixed_point import ByRow
from strategies.linear.masked_means.fourier import Expansion, expand

_TOLERANCES = (1e-9, 1e-7, 1e-6, 1e-5)
_FEW_TERMS = 48
_ENOUGH = 2.0  # times the squared residuals of no columns, which those of a fit hardly exceed
_AMPLE = 1024.0  # times them: sums are not so large that they are taken for others, modulo 2^64
_Function = Callable[[Array], Array]


@dataclass(frozen=True)
class ResidualSums:
    """Opens sums over rows where linear predictors are placed."""

    means: MaskedMeans
    family: Family
    y: Array  # (n,): labels of the rows of the fit
    weights: Array  # (n,)
    offset: Array  # (n,)
    placed: Placed
    level: float

    def information(self, like: Array) -> Array:
        """Open the information, whose size is known from a place nearby; one round."""
        variance = self.family.variance
        functions = self._by_row([variance], self.weights[None])
        low, high = self.level + self.placed.low, self.level + self.placed.high
        ends = np.array([low, min(max(0.0, low), high), high])
        largest = float(self.weights.max() * variance(ends).max())
        bound = Bound(len(self.y) * largest, largest)
        return self.means.open_by_row(self.placed, self.placed.centre, functions, bound, like)

    def middle(self, again: bool) -> Array:
        """Open the middle of the sandwich, of 1 and the centred columns; mostly two rounds.

        `again`: whether it may be asked for once more, for more digits.

        Shapes: returns (1 + n_columns, 1 + n_columns).
        """
        y, mean, squares = self.y, self.family.mean, self.weights**2
        functions = self._by_row(
            [np.ones_like, mean, lambda t: np.asarray(mean(t) ** 2)],
            squares * np.stack([y**2, -2.0 * y, np.ones_like(y)]),
        )
        largest = self._largest(lambda t: squares * (y - mean(t)) ** 2)
        total = _ENOUGH * float(squares @ (y - mean(self._none)) ** 2)
        while True:
            bound = Bound(total, largest)
            found = self.means.open_by_row(
                self.placed, self.placed.centre, functions, bound, again=again
            )
            if float(found[0, 0]) <= total:
                return found
            total = _ENOUGH * float(found[0, 0])

    def pearson(self) -> float:
        """Open Pearson's chi-squared; one round."""
        y, w = self.y, self.weights
        rises: _Function = np.exp
        falls: _Function = lambda t: np.asarray(np.exp(-t))  # noqa: E731
        if self.family.name == "binomial":
            return self._residuals([falls, rises], np.stack([w * y, w * (1.0 - y)]))
        factors = w * np.stack([y**2, -2.0 * y, np.ones_like(y)])
        return self._residuals([falls, np.ones_like, rises], factors)

    def squares(self) -> float:
        """Open the sum of squared residuals; one round."""
        y, mean = self.y, self.family.mean
        factors = np.stack([y**2, -2.0 * y, np.ones_like(y)])
        return self._residuals([np.ones_like, mean, lambda t: np.asarray(mean(t) ** 2)], factors)

    def squared_means(self) -> float:
        """Open the sum of squared means; one round."""
        mean = self.family.mean
        functions: list[_Function] = [lambda t: np.asarray(mean(t) ** 2)]
        largest = self._largest(functions[0])
        found = self._by_row(functions, np.ones((1, len(self.y))))
        return self._open(found, len(self.y) * largest)

    def _residuals(self, functions: Sequence[_Function], factors: Array) -> float:
        """Open a sum that hardly exceeds that of no columns; if it does, one more round."""

        def value(t: Array) -> Array:
            return np.asarray(sum(f * g(t) for f, g in zip(factors, functions, strict=True)))

        found = self._by_row(functions, factors)
        safe = len(self.y) * self._largest(value)
        size = min(safe, _AMPLE * float(value(self._none).sum()))
        total = self._open(found, size)
        return total if 0.0 <= total <= size else self._open(found, safe)

    def _open(self, functions: ByRow, size: float) -> float:
        return self.means.open_total(self.placed, self.placed.centre, functions, size)

    @property
    def _none(self) -> Array:
        """Linear predictors of no columns, (n,)."""
        return self.offset + self.family.null_level(self.y, self.weights, self.offset)

    def _largest(self, value: _Function) -> float:
        """Return what no value exceeds; they are convex in the linear predictor or the mean."""
        ends = self.level + self.placed.low, self.level + self.placed.high
        return max(float(np.abs(value(np.full(len(self.y), end))).max()) for end in ends)

    def _by_row(self, functions: Sequence[_Function], factors: Array) -> ByRow:
        middle = self.level + self.placed.centre
        radius = max((self.placed.high - self.placed.low) / 2.0, 0.5)
        # Of 1, mu and mu^2 the first would have errors of the size of the last, times y^2.
        sizes = np.array([float(f(np.array([middle]))[0]) for f in functions])

        def about(function: _Function, size: float) -> _Function:
            return lambda t: function(middle + t) / size

        scaled = [about(f, size) for f, size in zip(functions, sizes.tolist(), strict=True)]

        def unit(t: Array) -> Array:
            # Errors are relative to the largest function, or to what rows have on average.
            here = np.stack([np.abs(function(t)) for function in scaled])
            return np.asarray(np.maximum(here.max(axis=0), 1e-3 * here.max()))

        return ByRow(_expand(scaled, radius, unit), factors * sizes[:, None])


def _expand(functions: list[_Function], radius: float, unit: _Function) -> list[Expansion]:
    """Expand as precisely as few terms allow."""
    for tolerance in _TOLERANCES:
        try:
            return expand(functions, radius, tolerance, unit, _FEW_TERMS, constant=False)
        except DataError:
            continue
    return expand(functions, radius, _TOLERANCES[-1], unit, constant=False)
