"""Tables of pairs of columns: their places, and what opens those of two parties' columns."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Indices, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.privacy import Keystream, gaussian_integers
from strategies.marginals.budget import UNIT


class PairTables:
    """Where the tables of pairs of columns stand, and what each party adds to those of two."""

    def __init__(self, pairs: Indices, sizes: Sequence[int], n_columns: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._starts = list(accumulate([0, *sizes]))
        self._owner = np.repeat(np.arange(len(n_columns)), n_columns)
        self._pairs = [(int(i), int(j)) for i, j in pairs]
        self._across: list[tuple[int, int, int]] = []
        self.n_cells = 0
        for i, j in self._pairs:
            if self._owner[i] != self._owner[j]:
                self._across.append((i, j, self.n_cells))
                self.n_cells += sizes[i] * sizes[j]

    @classmethod
    def of(cls, pairs: Indices, sizes: Sequence[int], n_columns: Sequence[int]) -> "PairTables":
        """Return the places of pairs, each once and ascending; others are refused."""
        ascending = [(int(i), int(j)) for i, j in pairs if i < j]
        if len(set(ascending)) != len(pairs):
            raise ProtocolError(
                "pairs of columns must be of two columns, ascending, each once: the same counts "
                "under other noise would spend the budget again"
            )
        return cls(pairs, sizes, n_columns)

    def inside(self, place: int) -> list[tuple[int, int]]:
        """Return the pairs of a party's own columns."""
        return [(i, j) for i, j in self._pairs if self._owner[i] == self._owner[j] == place]

    def levels(self, place: int) -> slice:
        """Return where a party's levels stand among those of all."""
        own = np.flatnonzero(self._owner == place)
        return slice(self._starts[own[0]], self._starts[own[-1] + 1])

    def add(self, total: Ring, masks: Ring, plain: Ring, place: int) -> None:
        """Add a party's corrections of a block of rows.

        Shapes: total (n_cells,); masks (n_rows, n_levels): key streams of all; plain (n_rows,
        n_levels): the own levels, 0 of others'.
        """
        with_plain = np.ascontiguousarray((masks + plain).T)
        masks_t, plain_t = np.ascontiguousarray(masks.T), np.ascontiguousarray(plain.T)

        def parts(i: int, j: int) -> tuple[Ring, Ring] | None:
            if self._owner[j] == place:  # the later one: its masked levels
                return masks_t, with_plain
            return (plain_t, masks_t) if self._owner[i] == place else None

        self._products(total, parts)

    def opened(self, masked: Ring) -> Ring:
        """Return products of masked levels of a block of rows, of shape (n_cells,)."""
        total = np.zeros(self.n_cells, dtype=np.uint64)
        columns = np.ascontiguousarray(masked.T)
        self._products(total, lambda i, j: (columns, columns))
        return total

    def noise(self, place: int, sigma: float, stream: Keystream) -> Ring:
        """Return a party's noise on the tables that it is part of, in units, (n_cells,)."""
        found = np.zeros(self.n_cells, dtype=np.uint64)
        for i, j, at in self._across:
            if place in (self._owner[i], self._owner[j]):
                size = self._sizes[i] * self._sizes[j]
                drawn = gaussian_integers(max(round(sigma * UNIT), 1), size, stream)
                found[at : at + size] = np.array([x % 2**64 for x in drawn], dtype=np.uint64)
        return found

    def split(self, own: Sequence[Array], across: Array) -> dict[tuple[int, int], Array]:
        """Return the tables by pair.

        Shapes: own: by party, its own tables one after the other; across (n_cells,).
        """
        found = {}
        at = [0] * len(own)
        places = {(i, j): start for i, j, start in self._across}
        for i, j in self._pairs:
            shape = self._sizes[i], self._sizes[j]
            size = shape[0] * shape[1]
            if (i, j) in places:
                start = places[i, j]
                found[i, j] = across[start : start + size].reshape(shape)
            else:
                p = int(self._owner[i])
                found[i, j] = np.asarray(own[p])[at[p] : at[p] + size].reshape(shape)
                at[p] += size
        return found

    def _products(self, total: Ring, parts: Any) -> None:
        """Add, for each pair, the product of levels of its columns; one product for a column."""
        by_first: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for i, j, at in self._across:
            by_first.setdefault((i, int(self._owner[j])), []).append((j, at))
        for (i, _), ends in by_first.items():
            found = parts(i, ends[0][0])
            if found is None:
                continue
            one = found[0][self._starts[i] : self._starts[i + 1]]
            rows = np.concatenate(
                [np.arange(self._starts[j], self._starts[j + 1]) for j, _ in ends]
            )
            low, high = int(rows[0]), int(rows[-1]) + 1
            other = found[1][low:high] if len(rows) == high - low else found[1][rows]
            tables = np.einsum("in,jn->ij", one, other)
            start = 0
            for j, at in ends:
                size = self._sizes[j]
                table = tables[:, start : start + size]
                total[at : at + table.size] += table.ravel()
                start += size
