"""Which rows may be told of together: rules on groups of rows, vectors and columns of flags.

A sum over few rows tells of each of them. So rows with the same blocks missing form a group, and a
group smaller than the minimum counts further blocks as missing until it joins a larger one; what
still is too small is left out. A column of two values is told of only where so many sets of rows
could have the rarer one that a sum does not single out which.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.policy.limits import max_vectors, min_rows

__all__ = [
    "RowGroups",
    "distinct_rows",
    "flag_is_safe",
    "group_rows",
    "levels_are_safe",
    "max_vectors",
    "min_rows",
]

Flags = npt.NDArray[np.bool_]

_BITS = 62  # of a whole number that holds a row of flags


def flag_is_safe(n_rows: int, n_rarer: int, n_vectors: int) -> bool:
    """Tell whether products of a column of two values leave open which rows have the rarer one.

    Parameters
    ----------
    n_rows : int
        Rows of the group.
    n_rarer : int
        How many have the rarer value; 0 tells nothing and is safe.
    n_vectors : int
        Vectors of the server that are multiplied with the column, 64 bits each.
    """
    return levels_are_safe(np.array([n_rows - n_rarer, n_rarer]), n_vectors)


def levels_are_safe(
    counts: npt.NDArray[np.int64], n_vectors: int, minimum: int | None = None
) -> bool:
    """Tell whether products of a column of few values leave open which rows have which value.

    The rows must be able to have the values in ``2^(64 T + 20)`` ways.

    Parameters
    ----------
    counts : numpy.ndarray of shape (n_levels,)
        Rows of each value.
    n_vectors : int
        Vectors of the server that are multiplied with the column, 64 bits each.
    minimum : int, optional
        The owner's own minimum of rows: a column is safe too if each value has so many.
    """
    present = counts[counts > 0]
    if len(present) < 2 or (minimum is not None and present.min() >= minimum):
        return True
    ln_ways = math.lgamma(int(present.sum()) + 1) - sum(math.lgamma(int(c) + 1) for c in present)
    return ln_ways / math.log(2.0) >= 64 * n_vectors + 20


@dataclass(frozen=True)
class RowGroups:
    """Groups of rows with the same blocks counted as missing.

    Parameters
    ----------
    mask : numpy.ndarray of shape (n_groups, n_parties), bool
        True where the group counts a party's block as missing.
    group : numpy.ndarray of shape (n_rows,)
        Number of each row's group, -1 where the row is left out.
    n_merged : int
        Rows of which a block that exists counts as missing.
    n_left_out : int
        Rows that are in no group although somebody has them.
    """

    mask: Flags
    group: npt.NDArray[np.int64]
    n_merged: int
    n_left_out: int


def group_rows(
    mask: Flags, widths: npt.NDArray[np.int64], n_vectors: int, at_least: int | None = None
) -> RowGroups:
    """Put rows into groups that are large enough.

    The smallest group of those with most blocks goes first: of the groups that it could join by
    giving up one block it joins that which keeps most columns and then has most rows.

    Parameters
    ----------
    mask : numpy.ndarray of shape (n_rows, n_parties), bool
        True where a party has no row.
    widths : numpy.ndarray of shape (n_parties,)
        Number of columns of each party.
    n_vectors : int
        Vectors of the server.
    at_least : int, optional
        Fewest rows of a group (default: `min_rows` of its columns).
    """
    n_parties = mask.shape[1]
    kinds, member, counts = distinct_rows(mask)
    # By set of parties that count, as a tuple of booleans (True = present).
    size = {tuple(bool(x) for x in ~kind): int(n) for kind, n in zip(kinds, counts, strict=True)}
    joined = {kind: kind for kind in size}  # where the rows of a pattern are in the end
    nothing = (False,) * n_parties

    def needed(kind: tuple[bool, ...]) -> int:
        if at_least is not None:
            return at_least
        return min_rows(int(widths[np.array(kind)].sum()), n_vectors)

    while small := [k for k, n in size.items() if k != nothing and n < needed(k)]:
        kind = min(small, key=lambda k: (-sum(k), size[k], k))
        choices = []
        for party in np.flatnonzero(kind):
            less = tuple(present and j != party for j, present in enumerate(kind))
            rows = size.get(less, 0)
            large = less != nothing and rows + size[kind] >= needed(less)
            kept = int(widths[np.array(less)].sum())
            choices.append((large, kept, rows, less))
        target = max(choices)[-1]
        size[target] = size.get(target, 0) + size.pop(kind)
        joined = {pattern: target if end == kind else end for pattern, end in joined.items()}
    ends = sorted(end for end in size if end != nothing)
    number = {end: g for g, end in enumerate(ends)} | {nothing: -1}
    patterns = [tuple(bool(x) for x in ~kind) for kind in kinds]
    of_pattern = np.array([number[joined[pattern]] for pattern in patterns], dtype=np.int64)
    merged = sum(
        int(n)
        for pattern, n in zip(patterns, counts, strict=True)
        if joined[pattern] not in (pattern, nothing)
    )
    left = sum(
        int(n)
        for pattern, n in zip(patterns, counts, strict=True)
        if joined[pattern] == nothing and pattern != nothing
    )
    return RowGroups(
        mask=~np.array(ends, dtype=bool).reshape(len(ends), n_parties),
        group=of_pattern[member],
        n_merged=merged,
        n_left_out=left,
    )


def distinct_rows(
    mask: Flags,
) -> tuple[Flags, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the different rows of a table of flags, which one each row is, and how often.

    Parameters
    ----------
    mask : numpy.ndarray of shape (n_rows, n_columns), bool

    Returns
    -------
    kinds : numpy.ndarray of shape (n_kinds, n_columns), bool
    member : numpy.ndarray of shape (n_rows,)
    counts : numpy.ndarray of shape (n_kinds,)
    """
    if mask.shape[1] > _BITS:
        kinds, member, counts = np.unique(mask, axis=0, return_inverse=True, return_counts=True)
        return kinds, member.reshape(-1), counts
    # As whole numbers: sorting rows of an array takes ten times as long.
    weights = np.int64(1) << np.arange(mask.shape[1], dtype=np.int64)[::-1]
    codes = mask.astype(np.int64) @ weights
    found, member, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return (found[:, None] & weights) > 0, member, counts
