"""The levels that a column is counted in, found from noisy counts, and values drawn from levels.

*Levels.* Those with a noisy count below a minimum become ``other``, or of ordered ones the next
lower that has more: which is nearest may depend on one row. *Numbers.* The range is cut into eight
in asinh (`strategies.copula.tree`); a part that holds much more than noise is cut again, four times
at most. Counts of the parts of a cell are projected on those that are not negative and add up to
the cell's. Neighbouring cells are put together to bins of about the same count, but one with many
values, as a point mass is, stays alone.
*Missing cells* are a level of their own.

So domains are functions of noisy counts, and so are the values drawn.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.privacy import Keystream, gaussian_integers
from strategies.common.synthesis_columns import LIMIT
from strategies.copula.histogram_cdf import UNIT as NEAR_ZERO
from strategies.copula.histogram_cdf import margin_of_cells
from strategies.copula.margins import Domain, Margin
from strategies.copula.tree import count_in, middles, project, roots
from strategies.marginals.budget import LEVELS, UNIT

_HALVINGS = 3  # between two tables of counts
_CUT = 6.0  # deviations of noise: a cell with fewer counts is not cut
_EMPTY = 4.5  # deviations of noise: of the first cells, one with fewer counts is empty
_RARE = 2.0  # deviations of noise: fewer rows of rare levels do not become a level of their own
_MISSED = 4.0  # deviations of noise: fewer missing cells are not told of
_NOTHING = -1e9  # a count that is projected on 0


@dataclass(frozen=True)
class ColumnLevels:
    """A column as levels."""

    codes: Integers  # (n_rows,): level of each row
    size: int  # Number of levels
    values: Array  # (size,): number of a level of a column of levels; NaN is a missing cell
    counts: Array  # (size,): of each level, by the tables that levels were found from
    precision: Array  # (size,): 1 over the variance of their noise; 0 where they do not count
    margin: Margin | None = None  # Of a column of numbers
    # (n_bins + 1,): shares of the margin that a bin begins and ends at
    shares: Array = field(default_factory=lambda: np.zeros(1))

    def counted(self, sigma: float, stream: Keystream) -> tuple[Array, float]:
        """Count levels once more; return means of both counts, weighted by noise, and their noise.

        Shapes: returns (size,); the noise is the root of its mean variance.
        """
        again = noisy(np.bincount(self.codes, minlength=self.size), sigma, stream)
        precision = self.precision + sigma**-2.0
        share = self.precision / precision  # of the first counts
        noise = float(np.sqrt(np.mean(1.0 / precision)))
        return np.asarray(again + share * (self.counts - again)), noise

    def draw(self, codes: Integers, rng: np.random.Generator) -> Array:
        """Return values of synthetic levels, array of their shape; spread evenly over a bin."""
        found = self.values[codes]
        if self.margin is None:
            return found
        for b in range(len(self.shares) - 1):
            rows = np.flatnonzero(codes == b)
            at = (rng.permutation(len(rows)) + rng.random(len(rows))) / max(len(rows), 1)
            low, high = self.shares[b], self.shares[b + 1]
            found[rows] = self.margin.quantile(low + at * (high - low))
        return found


def noisy(counts: npt.ArrayLike, sigma: float, stream: Keystream) -> Array:
    """Return counts with discrete Gaussian noise, in counts; an array of their shape."""
    exact = np.asarray(counts, dtype=np.float64)
    drawn = gaussian_integers(max(ceil(sigma * UNIT), 1), exact.size, stream)
    return exact + np.array(drawn, dtype=np.float64).reshape(exact.shape) / UNIT


def levels_of(
    codes: Array, n_levels: int, other: int | None, least: float, sigma: float, stream: Keystream
) -> ColumnLevels:
    """Find the levels of a column of levels.

    `other`: the level that rare ones become, by default the next lower named; `least`: the noisy
    count that a level has at least (`Budget.least_count`).

    Shapes: codes (n_rows,): numbers of levels; NaN = missing.
    """
    missing = np.isnan(codes)
    whole = np.where(missing, n_levels, codes).astype(np.int64)
    counts = noisy(np.bincount(whole, minlength=n_levels + 1), sigma, stream)
    told = bool(counts[-1] >= _MISSED * sigma)
    kept = np.flatnonzero(counts[:-1] >= least)
    # Of what is left over, too, only noisy counts may say whether it is there.
    rest = len(codes) - counts[kept].sum() - counts[-1] * told
    others = not len(kept) or rest >= _RARE * sigma * np.sqrt(len(kept) + 1)
    if other is not None and others:
        values = np.append(kept[kept != other], other).astype(np.float64)
        elsewhere = np.full(n_levels, len(values) - 1)
    elif len(kept):
        values = kept.astype(np.float64)
        # Not the nearest one: a level of one row in between would move all rows of another.
        elsewhere = np.maximum(np.searchsorted(kept, np.arange(n_levels), side="right") - 1, 0)
    else:  # nothing stands out of the noise
        values, elsewhere = np.array([np.nan]), np.zeros(n_levels, dtype=np.int64)
    at = {int(level): i for i, level in enumerate(values) if not np.isnan(level)}
    place = np.array([at.get(level, elsewhere[level]) for level in range(n_levels)], dtype=np.int64)
    place = np.append(place, len(values) if told else 0)  # of missing cells
    size = len(values) + told
    precision = sigma**-2.0 / np.maximum(np.bincount(place, minlength=size), 1)
    if least > -np.inf:
        # How many levels have no name may depend on one row, and so would the noise of their sum.
        apart = other is not None and others  # all that are not named are one level, the last
        precision[len(values) - 1 if apart else slice(len(values))] = 0.0
    together = np.asarray(np.bincount(place, counts, size), dtype=np.float64)
    return ColumnLevels(place[whole], size, _with_missing(values, told), together, precision)


def bins_of(
    values: Array, domain: Domain, most: int, sigma: float, stream: Keystream
) -> ColumnLevels:
    """Find about so many bins of a column of numbers, `most`.

    Shapes: values (n_rows,): NaN = missing.
    """
    missing = np.isnan(values)
    # A row whose value is missing is in no table below: so this one costs nothing beside them.
    n_missing = float(noisy(np.array([missing.sum()]), sigma, stream)[0])
    told = n_missing >= _MISSED * sigma
    total = max(len(values) - n_missing * told, 1.0)
    known = domain.snap(values[~missing])
    low, high, mass = _cells(np.sort(known), total, domain, sigma, stream)
    ends = _bin_ends(high, mass, most)
    n = len(ends) + 1
    codes = np.full(len(values), n if told else 0)
    codes[~missing] = np.searchsorted(ends, known, side="right")
    of_cell = np.searchsorted(ends, low, side="right")
    of_bin = np.bincount(of_cell, weights=mass, minlength=n)
    shares = np.append(0.0, np.cumsum(of_bin) / of_bin.sum()).astype(np.float64)
    margin = margin_of_cells(low, high, mass, domain, 0.0)
    counts = np.append(of_bin, [n_missing] * told)
    # Cells without counts were projected on 0, which leaves little of their noise.
    cells = np.append(np.maximum(np.bincount(of_cell, mass > 0, n), 1.0), [1.0] * told)
    return ColumnLevels(
        codes,
        n + told,
        _with_missing(np.zeros(n), told),
        counts,
        sigma**-2.0 / cells,
        margin,
        shares,
    )


def narrowest(at: Array) -> Array:
    """Return how wide bins of a column without bounds are at values, if they are cut to the end."""
    per_side = float(np.arcsinh(LIMIT / NEAR_ZERO)) / 2 ** (LEVELS * _HALVINGS)
    return np.asarray(per_side * np.hypot(at, NEAR_ZERO))


def _with_missing(values: Array, told: bool) -> Array:
    """Give missing cells a level of their own; too few to be told of count as the first level."""
    return np.append(values, np.nan) if told else values


def _cells(
    ordered: Array, n_rows: float, domain: Domain, sigma: float, stream: Keystream
) -> tuple[Array, Array, Array]:
    """Return lower ends, upper ends and counts of cells, arrays of shape (n_cells,), ascending."""
    low, high = roots(domain)
    parent, total = np.zeros(len(low), dtype=np.int64), np.array([n_rows])
    done = []
    for level in range(LEVELS):
        for _ in range(_HALVINGS):
            cuts = middles(low, high, domain)
            inside = (low < cuts) & (cuts < high)
            low, high, parent = (
                np.concatenate([low, cuts[inside]]),
                np.concatenate([np.where(inside, cuts, high), high[inside]]),
                np.concatenate([parent, parent[inside]]),
            )
            order = np.argsort(low)
            low, high, parent = low[order], high[order], parent[order]
        counts = noisy(count_in(ordered, low, high), sigma, stream)
        if level == 0:
            counts[counts < min(_EMPTY * sigma, counts.max())] = _NOTHING
        mass = np.zeros(len(low))
        for number, of_parent in enumerate(total):
            mass[parent == number] = project(counts[parent == number], of_parent)
        cuts = middles(low, high, domain)
        again = (low < cuts) & (cuts < high) & (mass > _CUT * sigma) & (level < LEVELS - 1)
        done.append((low[~again], high[~again], mass[~again]))
        low, high, total = low[again], high[again], mass[again]
        parent = np.arange(len(low))
        if not len(low):
            break
    low, high, mass = (np.concatenate(parts) for parts in zip(*done, strict=True))
    order = np.argsort(low)
    return low[order], high[order], mass[order]


def _bin_ends(high: Array, mass: Array, most: int) -> Array:
    """Return where all bins but the last end, array of shape (n_bins - 1,), ascending."""
    held = np.flatnonzero(mass > 0)
    goal, together, ends = mass.sum() / most, 0.0, []
    for here, after in pairwise(held):
        together += mass[here]
        if together >= goal or mass[after] >= goal:
            ends.append(high[here])
            together = 0.0
    return np.array(ends)
