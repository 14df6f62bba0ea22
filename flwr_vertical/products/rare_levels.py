"""Columns of few values: in which groups of rows sums do not tell which rows have which value.

With a column of two values, a product with a vector that the server knows is the sum of the vector
over the rows of one value. If few rows have it, or the group is small, one set of rows alone has
that sum, and the server finds it. So in every atom the rows must be able to have the values in
``2^(64 T + 20)`` ways, T being the number of vectors, 64 bits each. Of vectors ``2^i`` each bit of
a product is one row's flag. So vectors of more than one set (labels of another run) may tell a
tenth of that: from the second set on, each vector counts `LATER_SETS` times. Whole numbers of more
values count as levels here, too.

Where they cannot, the party withholds the column in that group of rows: it counts as missing there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products.columns import EarlierColumns
from flwr_vertical.products.row_groups import levels_are_safe

MOST_LEVELS = 20
"""A column of more different values is treated as one of real numbers."""

MOST_WHOLE = 4096
"""Of whole numbers, which repeat, so many different values count."""

LATER_SETS = 10
"""How often each vector counts once rows were multiplied with more than one set of vectors."""

_ZERO = 1e-9

_HEAD = 4096
"""Rows that are looked at first: most columns show more values there."""


def level_codes(column: Array) -> Indices | None:
    """Return numbers of a column's values, from 0; None if there are > `MOST_LEVELS`, or one."""
    if len(np.unique(column[:_HEAD])) > MOST_LEVELS:
        return None
    levels, codes = np.unique(column, return_inverse=True)
    return codes if 1 < len(levels) <= MOST_LEVELS else None


def repeated_codes(column: Array) -> Indices | None:
    """Return `level_codes` of a column whose values repeat, such as ages; None for real numbers."""
    head = column[:_HEAD]
    if 2 * len(np.unique(head)) > max(len(head), 2 * MOST_LEVELS):
        return None
    levels, codes = np.unique(column, return_inverse=True)
    return codes if 1 < len(levels) <= MOST_WHOLE else None


def counted_vectors(n_known: Indices, n_sets: Indices) -> Indices:
    """Return as how many vectors n_known that the server knows count, of n_sets sets, by atom."""
    return np.where(n_sets > 1, LATER_SETS, 1) * n_known


@dataclass(frozen=True)
class LevelAtoms:
    """Atoms as a request splits them: whence each comes, its group, and the vectors with it.

    Those of all columns count, also where a column was withheld before: it may be withheld once
    more than it had to be, never less.
    """

    of_row: Indices  # (n_rows,): number of each row's atom
    # parent, group: (n_atoms,): of each atom, the one that it was part of (0: none), and its
    # group now (-1: none)
    parent: Indices
    group: Indices
    # (n_atoms,): with how many vectors of the server its rows were multiplied in all
    n_vectors: Indices

    def withheld(
        self, codes: Mapping[int, Indices], n_groups: int, n_columns: int, minimum: int | None
    ) -> Flags:
        """Decide where columns are withheld.

        Shapes: codes (n_rows,): of each column of few values, the level of each row; returns
        (n_groups, n_columns): true where a column is withheld.
        """
        out = np.zeros((n_groups, n_columns), dtype=bool)
        for j, levels in codes.items():
            counts = self._counts(levels)
            out[sorted(self.unsafe_groups(self._levels_hide(counts, minimum))), j] = True
        return out

    def groups_of_cells(
        self, made: Array, before: EarlierColumns, own: Indices, minimum: int | None
    ) -> set[int]:
        """Return groups where few-valued columns tell rare values apart, with those told before.

        Values that the earlier columns tell apart by themselves are no news.

        Shapes: made (n_rows, n_made); own (n_rows,): which rows of the own table these are.
        """
        values = _classes(before.values)

        def is_safe(atoms: list[int]) -> bool:
            rows = np.flatnonzero(np.isin(self.of_row, atoms))
            if not len(rows):
                return True
            order, every = before.around(own[rows], made[rows])
            is_own = np.arange(len(order)) < len(rows)
            of = values[order] if len(values) else np.zeros(len(order), dtype=np.int64)
            kind = _classes(np.column_stack([of, every]))
            first = np.unique(kind, return_index=True)[1]
            table, size = every[first], np.abs(every).max(axis=0)
            table = table / np.where(size > 0, size, 1.0)
            # Flags of values in these rows, and with those of the same values in the other rows.
            mine = np.flatnonzero(is_own[first])
            flags = np.eye(len(first), dtype=bool)[:, mine]
            if not is_own.all():
                same = of[first][:, None] == of[first[mine]]
                flags = np.column_stack([flags, flags | (same & ~is_own[first][:, None])])
            n_now = 1 + made.shape[1]
            apart = _in_span(table[:, -n_now:], flags)
            apart |= _in_span(table, flags) & ~_in_span(table[:, :-n_now], flags)
            counts = np.bincount(kind) @ flags[:, apart]
            among = np.where(np.flatnonzero(apart) < len(mine), len(rows), len(order))
            n_vectors = int(self.n_vectors[atoms].max())
            return all(
                levels_are_safe(np.array([n, m - n]), n_vectors, minimum)
                for n, m in zip(counts, among, strict=True)
            )

        return self.unsafe_groups(is_safe)

    def _counts(self, codes: Indices) -> Indices:
        """Return how many rows of each atom have each level, (n_atoms, n_levels)."""
        n_levels, n_atoms = int(codes.max()) + 1, len(self.parent)
        numbers = self.of_row.astype(np.int64) * n_levels + codes
        return np.bincount(numbers, minlength=n_atoms * n_levels).reshape(n_atoms, n_levels)

    def _levels_hide(self, counts: Indices, minimum: int | None) -> Callable[[list[int]], bool]:
        return lambda atoms: levels_are_safe(
            counts[atoms].sum(axis=0), int(self.n_vectors[atoms].max()), minimum
        )

    def unsafe_groups(self, is_safe: Callable[[list[int]], bool]) -> set[int]:
        """Return where a column is withheld; `is_safe` says whether atoms may be told of."""
        out: set[int] = set()
        while True:
            # A group that is withheld joins what is not asked for of its parent.
            merged: dict[tuple[int, int], list[int]] = {}
            for a in range(len(self.parent)):
                g = int(self.group[a])
                key = int(self.parent[a]), -1 if g in out else g
                merged.setdefault(key, []).append(a)
            more: set[int] = set()
            for (parent, g), found in merged.items():
                siblings = {h for p, h in merged if p == parent and h >= 0}
                asked = g >= 0 or (parent > 0 and bool(siblings))  # else nothing new is told
                if asked and not is_safe(found):
                    # What is left of an atom that was told of follows by subtracting the rest.
                    more |= {g} if g >= 0 else siblings
            if not more:
                return out
            out |= more


def _classes(columns: Array) -> Indices:
    """Return a number of each row's values, shape (n_rows,)."""
    found = np.zeros(len(columns), dtype=np.int64)
    for column in columns.T:  # by hashes: sorting rows takes a hundred times as long
        code = pd.factorize(column)[0]
        found = pd.factorize(found * (code.max(initial=0) + 1) + code)[0]
    return found


def _in_span(table: Array, flags: Flags) -> Flags:
    """Tell which of (n_rows, n_flags) flags are combinations of the columns; shape (n_flags,)."""
    u, s, _ = np.linalg.svd(table, full_matrices=False)
    found = (u[:, s > _ZERO * s.max(initial=0.0)].T @ flags) ** 2
    return np.asarray(found.sum(axis=0) > (1.0 - _ZERO) * flags.sum(axis=0))
