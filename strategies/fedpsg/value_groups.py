"""Values of an attribute in groups: levels, or bins of a numeric attribute.

Association rules map values to values. The paper takes every distinct value for one; an attribute
with thousands of them gives counts of 0 and 1. So numeric attributes are cut at quantiles, equal
values always together, and no group holds fewer rows than may be told of.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices

NONE = -1
"""Number of a value that is in no group: a missing cell, or a level that is rare or new."""


@dataclass(frozen=True)
class ValueGroups:
    """Groups of an attribute's values, and what stands for each."""

    # (n_groups - 1,): of a numeric attribute, where one bin ends and the next begins; None if it
    # has levels
    cuts: Array | None
    members: tuple[Array, ...]  # By group, the values that were seen there, ascending

    def __len__(self) -> int:
        return len(self.members)

    @property
    def medians(self) -> Array:
        """By group, the lower median of its values: a value that occurs; shape (n_groups,)."""
        return np.array([values[(len(values) - 1) // 2] for values in self.members])

    @property
    def means(self) -> Array:
        """By group, the mean of its values; shape (n_groups,)."""
        return np.array([values.mean() for values in self.members])

    def numbers(self, values: Array) -> Indices:
        """Return the group of each value.

        Shapes: values (n,): NaN = missing; returns (n,): `NONE` where there is no group.
        """
        out = np.full(len(values), NONE, dtype=np.int64)
        known = ~np.isnan(values)
        if not self.members:
            return out
        if self.cuts is not None:
            out[known] = np.searchsorted(self.cuts, values[known], side="right")
            return out
        for number, seen in enumerate(self.members):
            out[values == seen[0]] = number
        return out


def group_values(values: Array, numeric: bool, most: int, minimum: int) -> ValueGroups:
    """Put an attribute's values into groups.

    Shapes: values (n,): numbers, or numbers of levels; NaN = missing.
    """
    seen = np.sort(values[~np.isnan(values)])
    distinct, starts, counts = np.unique(seen, return_index=True, return_counts=True)
    if not numeric:
        common = np.flatnonzero(counts >= minimum)
        common = np.sort(common[np.argsort(-counts[common], kind="stable")][:most])
        return ValueGroups(None, tuple(seen[starts[j] : starts[j] + counts[j]] for j in common))
    if len(seen) < max(minimum, 1):
        return ValueGroups(np.zeros(0), ())
    if len(distinct) <= most:
        bins = np.arange(len(distinct))
    else:
        middle = np.cumsum(counts) - counts / 2.0
        bins = (most * middle / len(seen)).astype(np.int64)
    firsts = _bins_of_enough(bins, counts, minimum)
    cuts = (distinct[firsts[1:] - 1] + distinct[firsts[1:]]) / 2.0
    return ValueGroups(cuts, tuple(np.split(seen, starts[firsts[1:]])))


def _bins_of_enough(bins: Indices, counts: Indices, minimum: int) -> Indices:
    """Return which distinct value each bin begins with, bins of too few rows joined."""
    firsts, rows = [0], 0
    for j, count in enumerate(counts):
        if rows >= minimum and bins[j] != bins[j - 1]:
            firsts.append(j)
            rows = 0
        rows += int(count)
    if rows < minimum and len(firsts) > 1:
        firsts.pop()
    return np.array(firsts)


def indicators(numbers: Indices, n_groups: int) -> Array:
    """Return a column of 0 and 1 for each group; shape (n, n_groups)."""
    found: Array = (numbers[:, None] == np.arange(n_groups)).astype(np.float64)
    return found
