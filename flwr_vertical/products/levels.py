"""Columns of few values: they are told of only where sums leave open which rows have which value.

With a column of two values, a product with a vector that the server knows is the sum of the vector
over the rows of one value. If few rows have it, or the group is small, one set of rows alone has
that sum, and the server finds it. So in every atom the rows must be able to have the values in
``2^(64 T + 20)`` ways, T being the number of vectors, 64 bits each.

Where they cannot, the party withholds the column in that group of rows: it counts as missing there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.node import Party
from flwr_vertical.products.atoms import refine
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.row_groups import levels_are_safe

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_LEVELS = 20
"""A column of more different values is treated as one of real numbers."""

_HEAD = 4096
"""Rows that are looked at first: most columns show more values there."""


def level_codes(column: Array) -> Indices | None:
    """Return numbers of the different values of a column.

    Parameters
    ----------
    column : numpy.ndarray of shape (n_rows,)

    Returns
    -------
    numpy.ndarray of shape (n_rows,) or None
        From 0; None if there are more than `MOST_LEVELS` of them, or one alone.
    """
    if len(np.unique(column[:_HEAD])) > MOST_LEVELS:
        return None
    levels, codes = np.unique(column, return_inverse=True)
    return codes if 1 < len(levels) <= MOST_LEVELS else None


@dataclass(frozen=True)
class _Atoms:
    """Atoms as a request would split them: whence each comes, and its group."""

    of_row: Indices
    parent: Indices
    group: Indices

    @classmethod
    def of(cls, parents: Indices, own: Indices, n_groups: int) -> "_Atoms":
        key, of_row = np.unique(parents * (n_groups + 1) + own + 1, return_inverse=True)
        return cls(of_row, key // (n_groups + 1), key % (n_groups + 1) - 1)

    def unsafe_groups(self, codes: Indices, n_vectors: int, minimum: int | None) -> set[int]:
        """Return the groups in which a column has to be withheld.

        Parameters
        ----------
        codes : numpy.ndarray of shape (n_rows,)
            Level of each row.
        n_vectors, minimum
            See `levels_are_safe`.
        """
        n_levels = int(codes.max()) + 1
        n_atoms = len(self.parent)
        counts = np.bincount(self.of_row * n_levels + codes, minlength=n_atoms * n_levels)
        by_atom = counts.reshape(n_atoms, n_levels)
        out: set[int] = set()
        while True:
            # A group that is withheld joins what is not asked for of its parent.
            merged: dict[tuple[int, int], Any] = {}
            for a in range(n_atoms):
                g = int(self.group[a])
                key = int(self.parent[a]), -1 if g in out else g
                merged[key] = merged.get(key, 0) + by_atom[a]
            more: set[int] = set()
            for (parent, g), found in merged.items():
                siblings = {h for p, h in merged if p == parent and h >= 0}
                asked = g >= 0 or (parent > 0 and bool(siblings))  # else nothing new is told
                if asked and not levels_are_safe(found, n_vectors, minimum):
                    # What is left of an atom that was told of follows by subtracting the rest.
                    more |= {g} if g >= 0 else siblings
            if not more:
                return out
            out |= more


class LevelHistory:
    """What a party has told of each column of few values.

    Parameters
    ----------
    party : Party
        Whose columns they are.
    purpose : str
        What the products are for.
    minimum : int, optional
        The party's own minimum of rows: a level with so many rows may be told of.
    """

    def __init__(self, party: Party, purpose: str, minimum: int | None) -> None:
        self._state, self._cache, self._minimum = party.state, party.cache, minimum
        self._key = f"node.products.levels {purpose}"

    def refine(self, held: HeldColumns, own: Indices, n_groups: int, n_vectors: int) -> Flags:
        """Decide where columns are withheld, and note what is told of the others.

        Parameters
        ----------
        held : HeldColumns
            The columns.
        own : numpy.ndarray of shape (n_held,)
            Number of each row's group, -1 for rows that are not told of.
        n_groups, n_vectors : int
            Of the request; vectors in all.

        Returns
        -------
        numpy.ndarray of shape (n_groups, n_columns), bool
            True where a column is withheld.
        """
        withheld = np.zeros((n_groups, held.values.shape[1]), dtype=bool)
        codes = self._codes(held)
        if not codes:
            return withheld
        # Columns with the same past share one array of atoms, kept for all samples.
        past = self._state.get(self._key)
        none = np.zeros((1, held.n_samples), dtype=np.int64)
        histories = none if past is None else np.asarray(past, dtype=np.int64)
        which = self._state.get(self._key + " of columns", np.zeros(len(withheld.T), dtype=int))
        split: dict[int, _Atoms] = {}
        after: dict[tuple[int, frozenset[int]], list[int]] = {}
        for j, levels in codes.items():
            h = int(which[j])
            if h not in split:
                split[h] = _Atoms.of(histories[h][held.rows], own, n_groups)
            groups = split[h].unsafe_groups(levels, n_vectors, self._minimum)
            withheld[sorted(groups), j] = True
            after.setdefault((h, frozenset(groups)), []).append(j)
        kept, of_column = [], np.zeros(len(withheld.T), dtype=np.int64)
        for number, ((h, told_without), columns) in enumerate(after.items()):
            told = np.where(np.isin(own, sorted(told_without)), -1, own)
            history = np.zeros(held.n_samples, dtype=np.int32)
            history[held.rows] = refine(histories[h][held.rows], told, n_groups)
            kept.append(history)
            of_column[columns] = number
        self._state[self._key] = np.stack(kept)
        self._state[self._key + " of columns"] = of_column
        return withheld

    def _codes(self, held: HeldColumns) -> dict[int, Indices]:
        # By the columns themselves: others may have come in their place.
        key = f"{self._key} codes"
        if key not in self._cache or self._cache[key][0] is not held.values:
            found = {}
            for j in range(held.values.shape[1]):
                codes = level_codes(held.values[:, j])
                if codes is not None:
                    found[j] = codes
            self._cache[key] = held.values, found
        codes_of: dict[int, Indices] = self._cache[key][1]
        return codes_of
