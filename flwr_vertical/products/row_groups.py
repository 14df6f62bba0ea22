"""Which rows may be told of together: rules on groups of rows, vectors and columns of flags.

A sum over few rows tells of each of them. So rows with the same blocks missing form a group. Where
they are fewer than the minimum, rows that hold the same blocks and perhaps more form one, and count
the rest as missing; rows for which there is no such group are left out. Products of a column of two
values open only where so many sets of rows could have the rarer value that they do not tell which.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Flags, Integers
from flwr_vertical.policy.defaults import min_rows

_BITS = 62  # of a whole number that holds a row of flags


def levels_are_safe(counts: Integers, n_vectors: int, minimum: int | None = None) -> bool:
    """Tell whether products of a column of few values leave open which rows have which value.

    The rows must be able to have the values in ``2^(64 T + 20)`` ways.

    Shapes: counts (n_levels,): rows of each value.
    """
    present = counts[counts > 0]
    if len(present) < 2 or (minimum is not None and present.min() >= minimum):
        return True
    ln_ways = math.lgamma(int(present.sum()) + 1) - sum(math.lgamma(int(c) + 1) for c in present)
    return ln_ways / math.log(2.0) >= 64 * n_vectors + 20


@dataclass(frozen=True)
class RowGroups:
    """Groups of rows with the same blocks counted as missing."""

    mask: Flags  # (n_groups, n_parties): true where the group counts a party's block as missing
    # (n_rows,): number of each row's group, -1 where the row is left out
    group: Integers
    n_merged: int  # Rows of which a block that exists counts as missing
    n_left_out: int  # Rows that are in no group although somebody has them


def group_rows(
    mask: Flags, widths: Integers, n_vectors: int, at_least: int | None = None
) -> RowGroups:
    """Put rows into groups that are large enough.

    The group of most columns comes first: all rows that hold a set of parties, if they are enough.
    Further groups are made in the same way of the rows that remain. So rows of all parties are a
    group by themselves wherever they are enough, and a pattern that is large enough loses nothing.

    Shapes: mask (n_rows, n_parties): true where a party has no row; widths (n_parties,): number of
    columns of each party.
    """
    kinds, member, counts = distinct_rows(mask)
    present, left = ~kinds, counts.copy()

    def needed(n_columns: int) -> int:
        return min_rows(n_columns, n_vectors) if at_least is None else at_least

    minimum = np.array([needed(int(n)) if n else left.sum() + 1 for n in present @ widths])
    chosen: dict[tuple[bool, ...], Flags] = {}
    while (large := left >= minimum).sum() < (left > 0).sum():
        sets = _large_sets(present, left, large, widths, needed)
        if not sets:
            break
        best = max(sets, key=lambda own: (int(widths[np.array(own)].sum()), sets[own], own))
        chosen[best] = (left > 0) & present[:, np.array(best)].all(axis=1)
        left[chosen[best]] = 0
    for k in np.flatnonzero(large):  # without small ones, all patterns are groups of their own
        chosen[tuple(map(bool, present[k]))] = np.arange(len(left)) == k
    ends = sorted(chosen)
    of_pattern = np.full(len(kinds), -1, dtype=np.int64)
    for g, end in enumerate(ends):
        of_pattern[chosen[end]] = g
    counted = np.array(ends, dtype=bool).reshape(len(ends), mask.shape[1])
    grouped = of_pattern >= 0
    merged = grouped & (present != np.vstack([counted, kinds[:1]])[of_pattern]).any(axis=1)
    return RowGroups(
        mask=~counted,
        group=of_pattern[member],
        n_merged=int(counts[merged].sum()),
        n_left_out=int(counts[~grouped & present.any(axis=1)].sum()),
    )


def _large_sets(
    present: Flags, left: Integers, large: Flags, widths: Integers, needed: Callable[[int], int]
) -> dict[tuple[bool, ...], int]:
    """Return sets of parties that enough of the rows left hold, with the number of these rows.

    Of all sets, those that are large patterns, and those that grow from one party by the party that
    keeps most rows.
    """
    n_parties = present.shape[1]
    found: dict[tuple[bool, ...], int] = {}
    for kind in present[large]:
        found[tuple(map(bool, kind))] = int(left[present[:, kind].all(axis=1)].sum())
    for first in range(n_parties):
        own, holding = np.zeros(n_parties, dtype=bool), left > 0
        candidates = [first]
        while True:
            rows = left[holding] @ present[holding]
            columns = int(widths[own].sum())
            fits = [j for j in candidates if rows[j] >= max(needed(columns + int(widths[j])), 1)]
            if not fits:
                break
            best = max(fits, key=lambda j: (rows[j], -j))
            own[best] = True
            holding = holding & present[:, best]
            candidates = [j for j in range(n_parties) if not own[j]]
        if own.any():
            found[tuple(map(bool, own))] = int(left[holding].sum())
    return found


def distinct_rows(mask: Flags) -> tuple[Flags, Integers, Integers]:
    """Return the different rows of a table of flags, which one each row is, and how often.

    Shapes: mask (n_rows, n_columns); returns (n_kinds, n_columns); returns (n_rows,); returns
    (n_kinds,).
    """
    if mask.shape[1] > _BITS:
        kinds, member, counts = np.unique(mask, axis=0, return_inverse=True, return_counts=True)
        return kinds, member.reshape(-1), counts
    # As whole numbers: sorting rows of an array takes ten times as long.
    weights = np.int64(1) << np.arange(mask.shape[1], dtype=np.int64)[::-1]
    codes = mask.astype(np.int64) @ weights
    found, member, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return (found[:, None] & weights) > 0, member, counts
