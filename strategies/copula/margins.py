"""What is public of a numeric column: its range, stated or as wide as any, and its resolution.

Margins of columns with Laplace noise, and their inverses.

A continuous column gets the iterated Bernstein operator over noisy counts (Tang, Feng, Li and Wang,
Eq. 2.4, after Alda and Rubinstein 2017), made monotone and inverted on a grid; a column of levels
gets a noisy histogram. Noise is added to counts, which are integers, so it can be sampled exactly.

The paper adds noise of scale (l + 1) / (n epsilon) to each of the l + 1 values F(v / l), which
together have the l1-sensitivity (l + 1) / n (``noise="coefficients"``). Their increments have the
sensitivity 2 / n only: replacing one value moves one sample from one bin to another. Noise of
scale 2 / (n epsilon) on them (``noise="increments"``) gives the same guarantee.

The empirical distribution function enters as it is: the operator smooths it, and the sensitivity of
a spline through its points is not known.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import comb, exp, inf

import numpy as np
import numpy.typing as npt
import scipy

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.privacy import Keystream, laplace_integers, rational
from strategies.common.synthesis_columns import LIMIT


@dataclass(frozen=True)
class Domain:
    """What is public of a numeric column."""

    low: float = -LIMIT  # Range; values beyond it count as its ends
    high: float = LIMIT  # Range; values beyond it count as its ends
    step: float = 0.0  # Resolution, of which all values are multiples; 0 for none

    def snap(self, values: npt.ArrayLike) -> Array:
        """Return values on the grid and within the range, array of their shape."""
        clipped = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        return round_to(clipped, self.step)

    def edges(self, points: npt.ArrayLike) -> Array:
        """Return ends of cells, moved to halfway between two values; an array of their shape."""
        points = np.clip(np.asarray(points, dtype=np.float64), self.low, self.high)
        if not self.step:
            return points
        return (np.ceil(points / self.step - 1e-9) - 0.5) * self.step


def round_to(values: Array, step: float) -> Array:
    """Return the nearest multiples of a resolution (0: the values), array of their shape."""
    if not step:
        return values
    # 3 x 0.1 is not 0.3; a division by the inverse is, where that is a whole number
    inverse = round(1 / step)
    if inverse > 1 and abs(inverse * step - 1) < 1e-9:
        return np.rint(values * inverse) / inverse + 0.0
    return np.rint(values / step) * step + 0.0


NOISES = ("increments", "coefficients")
ITERATIONS = 6  # h: enough that the operator follows a normal density from degree 10 on
_GRID = 1001


@dataclass(frozen=True)
class Margin:
    """A distribution function on a grid of values."""

    values: Array  # (n_points,): increasing; of levels, their numbers
    cumulative: Array  # (n_points,): share of samples up to each value; the last is 1
    discrete: bool  # Whether only these values occur
    step: float = 0.0  # Resolution, to which what lies between them is rounded; 0 for none
    # (n_atoms, 2): point masses of a margin that is not discrete: the shares that each begins and
    # ends at
    atoms: Array = field(default_factory=lambda: np.empty((0, 2)))

    def quantile(self, levels: npt.ArrayLike) -> Array:
        """Return the values at probabilities in [0, 1], an array of their shape."""
        levels = np.asarray(levels, dtype=np.float64)
        if self.discrete:
            index = np.searchsorted(self.cumulative, levels, side="left")
            return self.values[np.minimum(index, len(self.values) - 1)]
        return round_to(np.interp(levels, self.cumulative, self.values), self.step)

    @property
    def cuts(self) -> Array:
        """Shares up to each value but the last, where only these values occur; else empty."""
        return self.cumulative[:-1] if self.discrete else self.cumulative[:0]


def degree(n: int, epsilon: float) -> int:
    """Choose the degree of the polynomial: twice the cube root of n epsilon, in [4, 100]."""
    return int(np.clip(round(2 * min(n * epsilon, 1e6) ** (1 / 3)), 4, 100))


def continuous_margin(
    values: npt.ArrayLike,
    low: float,
    high: float,
    epsilon: float,
    stream: Keystream,
    *,
    noise: str = "increments",
    l: int = 0,  # noqa: E741 (the paper's symbol)
) -> Margin:
    """Estimate a margin within a range, with ``epsilon``-differential privacy."""
    values = np.sort(np.clip(np.asarray(values, dtype=np.float64), low, high))
    n = len(values)
    l = l or degree(n, epsilon)  # noqa: E741
    knots = low + (high - low) * np.arange(l + 1) / l
    knots[-1] = high
    counts = np.searchsorted(values, knots, side="right").astype(np.int64)
    noisy = noisy_counts(counts, epsilon, stream, noise).astype(np.float64)
    if noise == "increments":  # the last is n but for the noise
        noisy *= n / max(noisy[-1], 1.0)
    grid = np.linspace(0.0, 1.0, _GRID)
    estimate = bernstein(grid, noisy / n, ITERATIONS)
    cumulative = np.clip(scipy.optimize.isotonic_regression(estimate).x, 0.0, 1.0)
    cumulative[0], cumulative[-1] = 0.0, 1.0
    return Margin(low + (high - low) * grid, cumulative, discrete=False)


def noisy_counts(
    counts: Integers, epsilon: float, stream: Keystream, noise: str = "increments"
) -> Integers:
    """Add integer Laplace noise to cumulative counts of one column.

    Shapes: counts (l + 1,): how many values lie below each knot; returns (l + 1,): not monotone
    any more.
    """
    if epsilon == inf:
        return counts
    if noise == "coefficients":  # n times Laplace noise of scale (1 / n) (l + 1) / epsilon
        scale = Fraction(len(counts)) / rational(epsilon)
        return counts + laplace_integers(scale, len(counts), stream)
    bins = np.diff(counts, prepend=0)
    return np.cumsum(bins + laplace_integers(2 / rational(epsilon), len(bins), stream))


def bernstein(x: Array, coefficients: Array, h: int) -> Array:
    """Evaluate the iterated Bernstein operator of order h (Eq. 2.4).

    Shapes: x (n,): in [0, 1]; coefficients (l + 1,): the function at v / l for v = 0, ..., l;
    returns (n,).
    """
    # sum_i C(h, i) (-1)^(i - 1) B^i f: the operator again and again, all at the knots but the last.
    l = len(coefficients) - 1  # noqa: E741
    at_knots = scipy.stats.binom.pmf(np.arange(l + 1), l, (np.arange(l + 1) / l)[:, None])
    power, total = coefficients, np.zeros(l + 1)
    for i in range(1, h + 1):
        total += comb(h, i) * (-1) ** (i - 1) * power
        power = at_knots @ power
    basis: Array = scipy.stats.binom.pmf(np.arange(l + 1), l, x[:, None])
    return basis @ total


@dataclass(frozen=True)
class LevelMargin:
    """The margin of a column of levels, rare ones put together."""

    margin: Margin  # Its values are level numbers; ``n_levels`` stands for all others together
    place: Integers  # (n_levels,): of each level, its place among the margin's values
    # That a level which one sample holds is not put with others, by the noise; 1 if none are
    chance: float


def level_margin(
    codes: npt.ArrayLike,
    n_levels: int,
    epsilon: float,
    stream: Keystream,
    *,
    least: int,
    other: int | None,
) -> LevelMargin:
    """Estimate the margin of level numbers; those with a small noisy count are put together."""
    codes = np.asarray(codes, dtype=np.int64)
    counts = _noisy_levels(np.bincount(codes, minlength=n_levels), epsilon, stream)
    kept = np.flatnonzero(counts >= least) if least else np.arange(n_levels)
    if not len(kept):
        kept = np.array([int(counts.argmax())])
    values = kept
    if other is None:
        # Not the nearest: a level of one row in between would move all rows of another.
        place = np.maximum(np.searchsorted(kept, np.arange(n_levels), side="right") - 1, 0)
    else:
        if len(kept) < n_levels and other not in kept:
            values = np.sort(np.append(kept, other))
        place = np.searchsorted(values, other) * np.ones(n_levels, dtype=np.int64)
        place[kept] = np.searchsorted(values, kept)
    together = np.bincount(place, weights=counts.astype(np.float64), minlength=len(values))
    scale = 0.0 if epsilon == inf else 2 / epsilon
    chance = float(least <= 1)
    if scale and least > 1:  # of noise of at least least - 1, which is an integer
        chance = exp(-(least - 1) / scale) / (1 + exp(-1 / scale))
    cumulative = _increasing(together.astype(np.float64))
    margin = Margin(values.astype(np.float64), cumulative, discrete=True)
    return LevelMargin(margin, place.astype(np.int64), chance)


def _noisy_levels(counts: Integers, epsilon: float, stream: Keystream) -> Integers:
    if epsilon == inf:
        return counts
    return counts + laplace_integers(2 / rational(epsilon), len(counts), stream)


def _increasing(counts: Array) -> Array:
    """Return noisy counts as a distribution function, array of their shape."""
    below = np.cumsum(counts)
    # An increasing fit, since setting negative counts to zero would feed empty levels.
    cumulative: Array = np.clip(
        scipy.optimize.isotonic_regression(below / max(below[-1], 1.0)).x, 0.0, 1.0
    )
    cumulative[-1] = 1.0
    return cumulative


def discrete_margin(
    codes: npt.ArrayLike, first: int, n_levels: int, epsilon: float, stream: Keystream
) -> Margin:
    """Estimate the margin of a column of levels with ``epsilon``-differential privacy.

    Shapes: codes (n,): observed level numbers (of counts: the counts); those out of range count as
    its ends.
    """
    codes = np.clip(np.asarray(codes, dtype=np.int64) - first, 0, n_levels - 1)
    counts = _noisy_levels(np.bincount(codes, minlength=n_levels), epsilon, stream)
    cumulative = _increasing(counts.astype(np.float64))
    return Margin(first + np.arange(n_levels, dtype=np.float64), cumulative, discrete=True)
