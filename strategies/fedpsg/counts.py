"""What the server makes of opened products: rank correlations, and counts of pairs of values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isqrt

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products import Moments
from flwr_vertical.products.row_groups import RowGroups, group_rows
from strategies.fedpsg.attribute_pairs import Pair


@dataclass(frozen=True)
class SharedRows:
    """Rows that two parties or more hold, in groups that may be told of."""

    parties: tuple[str, ...]  # In the order of the mask's columns
    # (n_samples,): number of each row's group, -1 for rows that one party alone holds or that are
    # too few
    group: Indices
    mask: Flags  # (n_groups, n_parties): true where a party's block counts as missing

    @classmethod
    def of(cls, mask: Flags, parties: Sequence[str], widths: Indices, minimum: int) -> "SharedRows":
        """Group the rows of a mask of shape (n_samples, n_parties), small groups merged."""
        groups: RowGroups = group_rows(mask, widths, 0, minimum)
        shared = (~groups.mask).sum(axis=1) >= 2
        number = np.append(np.where(shared, np.cumsum(shared) - 1, -1), -1)
        return cls(tuple(parties), number[groups.group], groups.mask[shared])

    @property
    def sizes(self) -> Indices:
        """Rows of each group; shape (n_groups,)."""
        return np.bincount(self.group[self.group >= 0], minlength=len(self.mask))

    def groups_of(self, a: str, b: str) -> Flags:
        """Return which groups both parties hold; shape (n_groups,)."""
        at = [self.parties.index(a), self.parties.index(b)]
        both: Flags = np.logical_and(*np.logical_not(self.mask[:, at]).T)
        return both

    def count(self, a: str, b: str) -> int:
        """Return how many rows both parties hold."""
        return int(self.sizes[self.groups_of(a, b)].sum())


def score_labels(parties: Sequence[str], widths: Mapping[str, int]) -> Indices:
    """Return for each column of rank scores of which two parties' rows it is.

    Each party offers its columns once for each other party, ranked among the rows that the two
    share. Columns that have a number in common are multiplied, no others.
    """
    number = {frozenset(two): i for i, two in enumerate(combinations(parties, 2))}
    return np.array(
        [
            number[frozenset((name, other))]
            for name in parties
            for other in parties
            if other != name
            for _ in range(widths[name])
        ],
        dtype=np.int64,
    )


def rank_correlations(
    moments: Moments, rows: SharedRows, widths: Mapping[str, int]
) -> dict[tuple[str, str], Array]:
    """Return Spearman's rank correlations between the attributes of every two parties.

    Shapes: returns (p_a, p_b): by two parties, the earlier first.
    """
    labels = score_labels(rows.parties, widths)
    owner = np.concatenate(
        [np.full(widths[n] * (len(rows.parties) - 1), k) for k, n in enumerate(rows.parties)]
    )
    found = {}
    for number, (a, b) in enumerate(combinations(rows.parties, 2)):
        here = rows.groups_of(a, b)
        n_rows = rows.count(a, b)
        of_a = np.flatnonzero((labels == number) & (owner == rows.parties.index(a)))
        of_b = np.flatnonzero((labels == number) & (owner == rows.parties.index(b)))
        total = moments.products[here][:, of_a][:, :, of_b].sum(axis=0)
        known = _told(moments, here)
        total = np.where(np.outer(known[of_a], known[of_b]), total, np.nan)
        found[a, b] = np.clip(total / n_rows, -1.0, 1.0) if n_rows else np.full(total.shape, np.nan)
    return found


def bins_of(pair: Pair, rows: SharedRows, minimum: int, most: int) -> int:
    """Return how many groups of values each attribute of a pair has at most.

    So many that a cell of the table of counts holds the minimum of rows on average.
    """
    cells = rows.count(pair.target, pair.source) // max(minimum, 1)
    return min(most, max(2, isqrt(cells)))


def counts_of_pairs(
    moments: Moments, labels: Indices, owner: Indices, pairs: Sequence[Pair], rows: SharedRows
) -> list[Indices]:
    """Return the table of counts of each pair.

    Shapes: labels, owner (n_columns,): number of the pair, and of the party, of each column;
    returns (n_source, n_target): 0 in groups of values that a party withheld in some of the rows.
    """
    found = []
    for i, pair in enumerate(pairs):
        here = rows.groups_of(pair.target, pair.source)
        of_source, of_target = (
            np.flatnonzero((labels == i) & (owner == rows.parties.index(name)))
            for name in (pair.source, pair.target)
        )
        total = moments.products[here][:, of_source][:, :, of_target].sum(axis=0)
        told = _told(moments, here)
        counts = np.where(np.outer(told[of_source], told[of_target]), total, 0.0)
        found.append(np.rint(counts).astype(np.int64))
    return found


def _told(moments: Moments, groups: Flags) -> Flags:
    """Return of which columns all of some groups are told; shape (n_columns,)."""
    told: Flags = np.count_nonzero(moments.withheld[groups], axis=0) == 0
    return told
