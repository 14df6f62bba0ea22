"""Which rows' moments are opened together.

Rows with the same blocks missing form a group. Where they are too few to be told of, they go with
rows that hold more blocks, which then count as missing, or are left out (`row_groups`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.policy.defaults import max_vectors, min_rows
from flwr_vertical.products.row_groups import RowGroups, group_rows

N_VECTORS = 1  # the labels


@dataclass(frozen=True)
class MinimumRows:
    """The fewest rows of a group, given how many columns it has."""

    stated: int | None = None  # The largest minimum that a node config states, None if none does
    by_rule: bool = True  # Whether a party holds to `policy.defaults.min_rows`
    vectors: int | None = None  # The fewest that a node config states, None if none does
    by_size: bool = True  # Whether a party allows vectors by the rows, as one that states none does

    def of(self, n_columns: int, n_vectors: int = N_VECTORS) -> int:
        """Return the minimum of a group with so many columns and vectors of the server."""
        rule = min_rows(n_columns, n_vectors) if self.by_rule else 1
        return max(rule, self.stated or 1, self.rows_for(n_vectors))

    def rows_for(self, n_vectors: int) -> int:
        """Return the fewest rows that parties multiply with so many vectors, or all they state."""
        wanted = n_vectors if self.vectors is None else min(n_vectors, self.vectors)
        return next(m for m in count(1) if self.vectors_for(m) >= wanted)

    def vectors_for(self, n_rows: int) -> int:
        """Return with how many vectors every party multiplies a set of so many rows."""
        by_size = [max_vectors(n_rows)] if self.by_size else []
        return min([*by_size, *([] if self.vectors is None else [self.vectors])])


def by_pattern(mask: Flags, widths: Indices, minimum: MinimumRows) -> RowGroups:
    """Group rows by the blocks that are missing, small groups merged.

    Shapes: mask (n_rows, n_parties): true where a party has no row; widths (n_parties,): number of
    columns of each party.
    """
    for_all = None if minimum.stated is None else minimum.of(int(widths.sum()))  # else by the rule
    groups = group_rows(mask, widths, N_VECTORS, for_all)
    if not len(groups.mask):
        kinds, counts = np.unique(mask[~mask.all(axis=1)], axis=0, return_counts=True)
        largest = int(counts.max()) if len(kinds) else 0
        raise too_few(largest, minimum.of(int(widths.min())), int(widths.min()))
    return groups


def complete_rows(
    mask: Flags, widths: Indices, minimum: MinimumRows, n_vectors: int = N_VECTORS
) -> RowGroups:
    """Take the rows that all parties have, and leave out all others."""
    complete = ~mask.any(axis=1)
    n_complete, needed = int(complete.sum()), minimum.of(int(widths.sum()), n_vectors)
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
    lower = (
        "samples, leave out columns, or have every party lower 'min-rows' in its node config to "
        f"{found} (simulate(min_rows={found}))"
    )
    return DataError(
        f"too few rows to tell anything of: {counted(found, 'labelled sample')} {which}, and "
        "sums over fewer "
        f"than {needed} (for {counted(n_columns, 'column')} and the labels) are not opened; "
        f"align more {lower if found else 'samples'}"
    )


def rows_by_pattern(mask: Flags, counted: Flags, parties: Sequence[str]) -> pd.DataFrame:
    """Count labelled rows by the parties that lack them, and say whether the fit takes them.

    Shapes: mask, counted (n_rows, n_parties): which parties have no row, and which count as having
    none; all of them where the row is left out.
    """

    def named(parties_of: Flags) -> str:
        return ", ".join(name for name, is_in in zip(parties, parties_of, strict=True) if is_in)

    kinds, counts = np.unique(np.hstack([mask, counted]), axis=0, return_counts=True)
    rows = []
    for kind, n_rows in zip(kinds, counts, strict=True):
        missing, lost = kind[: len(parties)], kind[len(parties) :]
        if missing.all():  # samples of no party
            continue
        lost &= ~missing
        taken = (
            "no" if (missing | lost).all() else f"without {named(lost)}" if lost.any() else "yes"
        )
        rows.append((named(missing) or "nothing", int(n_rows), taken))
    found = pd.DataFrame(rows, columns=["missing", "rows", "in the fit"])
    return found.sort_values("rows", ascending=False, kind="stable").set_index("missing")


def costs(mask: Flags, groups: RowGroups, needed: int, n_parties: int) -> list[str]:
    """Say which rows were left out, or lost a block, since sums over few rows are not opened."""
    left = (groups.group < 0) & ~mask.all(axis=1)
    alone = (~mask).sum(axis=1) == 1
    found = []
    if left.any():
        every = n_parties > 1 and bool((left == alone).all())
        text = f"{int(left.sum()):,} rows were left out"
        if every:
            text = f"all {int(left.sum()):,} rows that one party alone holds were left out"
        text += f": sums over fewer than {needed} rows are not opened. "
        if n_parties > 1 and len(groups.mask) == 1 and not groups.mask.any():
            text += "This fit is of the rows that all parties hold, as complete-case is. "
        found.append(text + "A lower 'min-rows' at the nodes would use more of them")
    if groups.n_merged:
        found.append(
            f"{groups.n_merged:,} rows count as lacking a party that holds them, since too few "
            f"rows are held by the same parties: sums over fewer than {needed} rows are not opened"
        )
    return found
