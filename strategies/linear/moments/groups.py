"""Which rows' moments are opened together.

Rows with the same blocks missing form a group. Where they are too few to be told of, they go with
rows that hold more blocks, which then count as missing, or are left out (`row_groups`).
"""

from dataclasses import dataclass
from itertools import count

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.products.row_groups import RowGroups, group_rows, max_vectors, min_rows

N_VECTORS = 1  # the labels


@dataclass(frozen=True)
class MinimumRows:
    """The fewest rows of a group, given how many columns it has."""

    stated: int | None = None  # The largest minimum that a node config states, None if none does
    by_rule: bool = True  # Whether a party holds to `row_groups.min_rows`
    # With how many vectors every party multiplies; of those that state none, as rows allow
    vectors: int = 0

    def of(self, n_columns: int, n_vectors: int = N_VECTORS) -> int:
        """Return the minimum of a group with so many columns and vectors of the server."""
        rule = min_rows(n_columns, n_vectors) if self.by_rule else 1
        return max(rule, self.stated or 1, self.rows_for(n_vectors))

    def rows_for(self, n_vectors: int) -> int:
        """Return the fewest rows that parties multiply with so many vectors."""
        enough = (m for m in count(1) if max(max_vectors(m), self.vectors) >= n_vectors)
        return next(enough)

    def for_all(self, n_columns: int) -> int | None:
        """Return one minimum for groups of any columns up to `n_columns`; None: by the rule."""
        return None if self.stated is None else self.of(n_columns)


def by_pattern(mask: Flags, widths: Indices, minimum: MinimumRows) -> RowGroups:
    """Group rows by the blocks that are missing, small groups merged.

    Shapes: mask (n_rows, n_parties): true where a party has no row; widths (n_parties,): number of
    columns of each party.
    """
    groups = group_rows(mask, widths, N_VECTORS, minimum.for_all(int(widths.sum())))
    if not len(groups.mask):
        kinds, counts = np.unique(mask[~mask.all(axis=1)], axis=0, return_counts=True)
        largest = int(counts.max()) if len(kinds) else 0
        raise too_few(largest, minimum.of(int(widths.min())), int(widths.min()))
    return groups


def complete_rows(mask: Flags, widths: Indices, minimum: MinimumRows) -> RowGroups:
    """Take the rows that all parties have, and leave out all others."""
    complete = ~mask.any(axis=1)
    n_complete, needed = int(complete.sum()), minimum.of(int(widths.sum()))
    if n_complete < needed:
        raise too_few(n_complete, needed, int(widths.sum()), "that all parties hold")
    return RowGroups(
        mask=np.zeros((1, mask.shape[1]), dtype=bool),
        group=np.where(complete, 0, -1).astype(np.int64),
        n_merged=0,
        n_left_out=int((~complete & ~mask.all(axis=1)).sum()),
    )


def too_few(
    found: int, needed: int, n_columns: int, which: str = "with the same blocks"
) -> DataError:
    """Return the error of groups that are all too small."""
    return DataError(
        f"too few rows to tell anything of: {found} labelled samples {which}, and sums over fewer "
        f"than {needed} (for {n_columns} columns and the labels) are not opened; align more "
        "samples, leave out columns, or have every party lower 'min-rows' in its node config to "
        f"{found} (simulate(min_rows={found}))"
    )
