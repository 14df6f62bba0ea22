"""Groups of values, rules from counts of pairs of them, and the values that are generated.

Liu, He, Tan et al., Section 3.2 (2) and (3): ``beta[k, q]`` is the share of the aligned samples
with value k of the source that have value q of the target. The paper generates the value with the
largest share, a random one where several are equally large.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices, Unsigned16
from flwr_vertical.tables import Kind, is_numeric

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
        """Return the group of each value; `NONE` of NaN, and where there is no group."""
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
    """Put an attribute's values (numbers, or those of levels; NaN = missing) into groups."""
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
    return np.asarray((numbers[:, None] == np.arange(n_groups)).astype(np.float64))


Weights = Unsigned16

RULES = ("argmax", "mean", "draw")
STEPS = 255
"""Shares travel in so many steps: exact ones would tell counts that are kept back."""


def kept_counts(counts: Indices, minimum: int) -> Indices:
    """Return the counts, 0 where they are below the minimum."""
    return np.where(counts >= minimum, counts, 0)


def shares(counts: Indices) -> Array:
    """Return ``beta``: each row divided by its sum, 0 where that is 0."""
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0))


def weights_of(counts: Indices, rule: str) -> Weights:
    """Return what a party is given of the rules, by `kept_counts`: a row of zeros: no rule."""
    if rule == "argmax":
        largest = counts.max(axis=1, keepdims=True, initial=0)
        weights: Weights = ((counts == largest) & (counts > 0)).astype(np.uint16)
    else:
        weights = np.rint(STEPS * shares(counts)).astype(np.uint16)
    return weights


def draw_groups(weights: Weights, sources: Indices, rng: np.random.Generator) -> Indices:
    """Draw a group of the target by each sample's source; `NONE` where there is no rule."""
    u = rng.random(len(sources))
    out = np.full(len(sources), NONE, dtype=np.int64)
    for group, row in enumerate(weights):
        here = sources == group
        ends = np.cumsum(row, dtype=np.float64)
        if here.any() and row.any():
            out[here] = np.searchsorted(ends, u[here] * ends[-1], side="right")
    return out


def with_rule(weights: Weights, sources: Indices) -> Indices:
    """Return the source's group of each sample, `NONE` where it has no rule."""
    known = np.append(weights.any(axis=1), False)  # the last stands for NONE
    return np.where(known[sources], sources, NONE)


def values_of_groups(
    groups: ValueGroups, numbers: Indices, drawn: bool, rng: np.random.Generator
) -> Array:
    """Return a value for each group number; `NONE` gives NaN."""
    out = np.full(len(numbers), np.nan)
    for number, members in enumerate(groups.members):
        here = numbers == number
        out[here] = rng.choice(members, int(here.sum())) if drawn else groups.medians[number]
    return out


def values_of_sources(
    groups: ValueGroups, weights: Weights, sources: Indices, kind: Kind | str
) -> Array:
    """Return the expected value of the attribute, by weights, (n_source, n_target), and group."""
    expected = np.full(len(weights) + 1, np.nan)  # the last stands for NONE
    for source, row in enumerate(weights.astype(np.float64)):
        if not row.any():
            continue
        if is_numeric(kind):
            expected[source] = row @ groups.means / row.sum()
        elif Kind(kind) is Kind.ORDINAL:
            at = np.searchsorted(np.cumsum(row), row.sum() / 2.0)
            expected[source] = groups.medians[at]
        else:
            expected[source] = groups.medians[row.argmax()]
    assert NONE == -1
    return np.asarray(expected[sources])


def rest_values(
    seen: Array, count: int, numeric: bool, drawn: bool, rng: np.random.Generator
) -> Array:
    """Return values of an attribute, from those seen, where nothing is known of a sample."""
    if drawn:
        return np.asarray(rng.choice(seen, count))
    if numeric:
        return np.full(count, seen.mean())
    levels, counts = np.unique(seen, return_counts=True)
    return np.full(count, levels[counts.argmax()])
