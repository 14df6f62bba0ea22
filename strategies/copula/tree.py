"""Margins of numeric columns of any scale: a tree that is deep where values are.

The range -1e8 to 1e8 is halved again and again in asinh(10 x), so that near 0 cells are cut at even
distances, far from 0 at even ratios. Every number has its cell on each level, so cells are public,
and no smallest and largest value is disclosed. Values beyond the range count as its ends.

1.  *Which cells to cut.* A cell at depth d is cut if its count, less d times some integer, is above
    zero after noise (Zhang, Xiao and Xie 2016, "PrivTree: A Differentially Private Algorithm for
    Hierarchical Decompositions", Algorithm 2). The noise does not grow with the number of levels.
2.  *How much they hold.* The cells that are not cut any more get counts with noise of their own,
    projected on those that are not negative and add up to the number of values. Outermost cells
    that do not stand out of the noise are taken to be empty: else a few samples would be drawn near
    1e8.
3.  *From cells to a distribution function*: see `cells`.

Noise is integer noise on counts, so it is sampled exactly; `decomposition` has the proof for step
1. Cells without a multiple of the column's resolution hold nothing and get no noise.
"""

from fractions import Fraction
from math import ceil, inf, log

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.privacy import Keystream, laplace_integers, rational
from strategies.common.synthesis_columns import LIMIT
from strategies.copula.histogram_cdf import UNIT, margin_of_cells
from strategies.copula.margins import Domain, Margin

CUTTING = 0.4
"""Share of the budget that decides which cells are cut; the rest is for counts."""

_DEEPEST = 40  # the range over 2^40: single numbers, as far as data have digits
_PAID = 2.0  # by an outer cell, in scales of the noise, beside its width
_NOTHING = 1e-6  # values: less is rounding


def narrowest(value: float) -> float:
    """Return the width of the deepest cells of the range without bounds about a value."""
    return float(np.hypot(value, UNIT) * np.arcsinh(LIMIT / UNIT) * 2.0**-_DEEPEST)


def tree_margin(values: npt.ArrayLike, domain: Domain, epsilon: float, stream: Keystream) -> Margin:
    """Estimate the margin of a column of numbers with ``epsilon``-differential privacy."""
    ordered = np.sort(domain.snap(values))
    if epsilon == inf:
        cutting = counting = inf
    else:
        cutting = CUTTING * epsilon
        counting = epsilon - cutting
    low, high = decomposition(ordered, domain, cutting, stream)
    counts, error = count_in(ordered, low, high), 0.0
    if counting != inf:
        scale = 2 / rational(counting)
        noisy = counts + laplace_integers(scale, len(counts), stream)
        counts, error = _within_ends(noisy, low, high, float(scale)), 2**0.5 * float(scale)
    mass = project(counts.astype(np.float64), len(ordered))
    return margin_of_cells(low, high, mass, domain, error)


def roots(domain: Domain) -> tuple[Array, Array]:
    """Return the cells at the start, lower ends included: below 0, 0 itself, and above."""
    half = domain.step / 2
    bottom = domain.low - half
    top = domain.high + half if domain.step else float(np.nextafter(domain.high, inf))
    zero = (-half, half) if domain.step else (0.0, float(np.nextafter(0.0, inf)))
    ends = np.unique(np.clip([bottom, *zero, top], bottom, top))
    return ends[:-1], ends[1:]


def decomposition(
    ordered: Array, domain: Domain, epsilon: float, stream: Keystream
) -> tuple[Array, Array]:
    """Choose cells that are narrow where values are, with ``epsilon``-differential privacy.

    Let the noise N be integer with scale s, and ``delta = ceil(s log 2)``. A cell with count c at
    depth d is cut if ``max(c - d delta, -delta) + N > 0``. Compare two tables, one with a value
    more, and the chances of one tree. Only cells that contain the value differ. They lie on one
    path; those with ``x = c - d delta > -delta`` have an x that falls by delta or more from one to
    the next. A cut is more likely by at most 1 / s in logarithms, and for ``x >= 1`` by at most
    ``exp(-(x - 1) / s) / s``. Counted from below, the first two give 1 / s each; the i-th after
    these has ``x >= 1 + i delta`` and gives ``2^-i / s``. So with the larger table a tree is more
    likely by at most 3 / s, and less likely, by the one cell that is not cut, by at most 1 / s.
    Replacing a value takes one away and adds one: 4 / s, which is epsilon.

    Shapes: ordered (n,): values, ascending; returns (n_cells,): lower ends, which a cell includes,
    and upper ends; ascending.
    """
    scale = Fraction(0) if epsilon == inf else 4 / rational(epsilon)
    fall = max(ceil(float(scale) * log(2.0)), 1)
    low, high = roots(domain)
    done: list[tuple[Array, Array]] = []
    for depth in range(_DEEPEST + 1):
        cuts = middles(low, high, domain)
        # A cell that no value divides is not asked about: that it has no parts is public.
        divisible = (low < cuts) & (cuts < high) & (depth < _DEEPEST)
        left = np.maximum(count_in(ordered, low, high) - depth * fall, -fall)
        if scale:
            left[divisible] += laplace_integers(scale, int(divisible.sum()), stream)
        cut = divisible & (left > 0)
        done.append((low[~cut], high[~cut]))
        if not cut.any():
            break
        low, high = (np.concatenate([low[cut], cuts[cut]]), np.concatenate([cuts[cut], high[cut]]))
    low, high = (np.concatenate(ends) for ends in zip(*done, strict=True))
    order = np.argsort(low)
    return low[order], high[order]


def middles(low: Array, high: Array, domain: Domain) -> Array:
    """Return where cells are cut, array of their shape; an end where they cannot be."""
    ends = np.arcsinh(np.stack([low, high]) / UNIT)
    middle = domain.edges(UNIT * np.sinh(ends.mean(axis=0)))
    if domain.step:
        # Of few multiples, the middle in asinh may cut off none.
        middle = np.where((low < middle) & (middle < high), middle, domain.edges((low + high) / 2))
    return np.clip(middle, low, high)


def count_in(ordered: Array, low: Array, high: Array) -> Integers:
    """Return how many ascending values each cell holds, array of shape (n_cells,)."""
    first, last = (np.searchsorted(ordered, ends, side="left") for ends in (low, high))
    return np.asarray(last - first, dtype=np.int64)


def _within_ends(noisy: Integers, low: Array, high: Array, scale: float) -> Integers:
    """Empty the outermost cells that the noise explains.

    On both sides of the largest count as many cells stay as make the sum of their counts largest,
    after each has paid for its noise, and for its width: a far one must outweigh what lies between.
    """
    first = last = int(noisy.argmax())
    widths = np.diff(np.arcsinh(np.stack([low, high]) / UNIT), axis=0)[0]
    paid = noisy - scale * (_PAID + widths)
    after, before = np.cumsum(paid[last + 1 :]), np.cumsum(paid[:first][::-1])
    if len(after) and after.max() > 0:
        last += 1 + int(after.argmax())
    if len(before) and before.max() > 0:
        first -= 1 + int(before.argmax())
    kept = np.zeros(len(noisy), dtype=bool)
    kept[first : last + 1] = True
    return np.where(kept, noisy, np.iinfo(np.int32).min)


def project(counts: Array, total: int) -> Array:
    """Return the nearest counts that are not negative and have a sum, array of their shape."""
    falling = np.sort(counts)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    last = int(np.flatnonzero(falling > excess)[-1])
    found = np.maximum(counts - excess[last], 0.0)
    return np.where(found > _NOTHING, found, 0.0)
