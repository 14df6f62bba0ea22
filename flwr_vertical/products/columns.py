"""The columns that a party multiplies: as numbers, as whole numbers modulo 2^64, their sums.

Whole, the encoded columns of 1,000,000 rows would take as much memory as the table again, and the
streams of the group several times that: so they are encoded some rows at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array, Flags, Indices, Ring
from flwr_vertical.errors import FixedPointOverflowError
from flwr_vertical.privacy_ledger.row_history import ToldColumns
from flwr_vertical.products.arithmetic import BLOCK_ROWS, encode_rows, fraction_bits, rows_by_group
from flwr_vertical.products.noise import PrivateRows

_ROWS = 65_536
"""Rows at a time, so that no copy of the columns is made."""


class ScaledRows:
    """Raw columns less (n_columns,) centres, over units: made of rows asked for, never whole."""

    def __init__(self, raw: Array, center: Array, unit: Array) -> None:
        self.shape = raw.shape
        self._raw, self._center, self._unit = raw, center, unit

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, at: Any) -> Array:
        rows, columns = at if isinstance(at, tuple) else (at, slice(None))
        # In one order of memory, whatever that of the table, so that sums have the same bits.
        found = np.subtract(self._raw[rows, columns], self._center[columns], order="C")
        return np.divide(found, self._unit[columns], out=found)


def squares_of(values: "Array | ScaledRows") -> Array:
    """Return each column's sum of squares, some rows at a time; shape (n_columns,)."""
    total = np.zeros(values.shape[1])
    for start in range(0, len(values), _ROWS):
        block = values[start : start + _ROWS]
        total += np.einsum("ij,ij->j", block, block)
    return total


OF_TREES = frozenset(["leaves of random trees"])
"""In place of cells: of leaves of trees that split by all columns. These count among themselves,
since beside columns with values far out few would be left."""


@dataclass(frozen=True)
class HeldColumns:
    """A party's columns in the samples that it holds."""

    values: Array | ScaledRows  # (n_held, n_columns): Finite
    # (n_held,): Numbers of these samples, the same at all parties; ascending, which is the order of
    # the weights that the server sends
    rows: npt.NDArray[np.integer[Any]]
    n_samples: int  # How many samples there are
    # Names of the columns, for errors of this party; no message carries them
    names: tuple[str, ...] = ()
    # (n_held,): Which of the party's own rows (`Party.own_ids`) these are. Its privacy ledger
    # counts them; needed where `rows` are no aligned row numbers.
    own: npt.NDArray[np.integer[Any]] | None = None
    # What noise the method gives to their sums. Nothing else of the columns shows in what is told
    # of them then: they are offered in public units, in which none is above 1.
    noise: PrivateRows | None = None
    # (n_columns,): Sums of squares over all rows of the table. What the columns are divided by is
    # public, and follows from these: of the rows that take part, which the server chooses, it would
    # tell whether a row with a large value is among them.
    squares: Array | None = None
    # (n_columns,): Number of the variable of which a column holds a level, -1 of other columns. The
    # levels of one add up to all its rows: those that are withheld follow together.
    variable: Indices | None = None
    # Of which cells of the table each column is made, and then each of `earlier`: columns of the
    # same cells together may tell a row apart
    sources: tuple[frozenset[str], ...] = ()
    # Columns that other runs told of, if that was looked up
    earlier: "EarlierColumns | None" = None
    # Looks that up: of what the ledger has, those that columns told of by these groups of own rows
    # have to be judged beside. Other runs go on meanwhile, so it is asked when they are judged.
    beside: "Callable[[ToldColumns, Indices], EarlierColumns] | None" = None
    # How the columns are made of the table, as the privacy ledger keeps it; empty: it need not
    made_by: str = ""
    # The fewest rows of a set that may be told of, where the rule of the columns is too few
    at_least: int = 0

    def weighted(self, weight: Array) -> "HeldColumns":
        """Return the columns, each row times its weight; shape (n_held,)."""
        return replace(self, values=self.values[:] * weight[:, None], squares=None)

    def of_cells(self) -> "Iterator[tuple[frozenset[str], list[int], EarlierColumns]]":
        """Give cells, the columns that are made of these alone, and the earlier such columns."""
        n = self.values.shape[1]
        earlier = self.earlier or EarlierColumns(np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64))
        for cells in dict.fromkeys(self.sources):
            made = [j for j, of in enumerate(self.sources) if of <= cells]
            before, now = [j - n for j in made if j >= n], [j for j in made if j < n]
            if now:
                yield cells, now, EarlierColumns(earlier.values[:, before], earlier.sets[:, before])

    @property
    def filled(self) -> Array:
        """All samples, 0 where the party lacks one; shape (n_samples, n_columns)."""
        filled = np.zeros((self.n_samples, self.values.shape[1]))
        filled[self.rows] = self.values[:]
        return filled


@dataclass(frozen=True)
class EarlierColumns:
    """Columns of a party's own table that earlier runs told of."""

    values: Array  # (n_own, n_columns): Finite
    # (n_own, n_columns): number of the set of rows that each was told of over, from 1; 0: of none
    sets: Indices
    sources: tuple[frozenset[str], ...] = ()  # Of which cells of the table each is made

    def around(self, rows: Indices, made: Array) -> tuple[Indices, Array]:
        """Return by what others' columns are summed: earlier columns and 1 by set, then 1 and made.

        Shapes: made (len(rows), n_made); returns (n_around,): the rows first, and then those that
        share a set with them, or with such rows; returns (n_around, n_before + 1 + n_made): of
        these rows, 0 in rows beyond a column's set.
        """
        own = np.column_stack([np.ones(len(rows)), made])
        if not self.values.shape[1]:
            return rows, own
        near, n_near = np.zeros(len(self.sets), dtype=bool), 0
        near[rows] = True
        while n_near < (n_near := int(near.sum())):
            for sets in self.sets.T:
                near |= _present(sets[near], int(sets.max()))[sets]
        near[rows] = False
        order = np.concatenate([rows, np.flatnonzero(near)])
        parts: dict[bytes, Array] = {}
        for sets, values in zip(self.sets[order].T, self.values[order].T, strict=True):
            for number in np.flatnonzero(_present(sets, int(sets.max()))):
                chosen = sets == number
                parts.setdefault(chosen.tobytes(), chosen.astype(np.float64))
                column = np.where(chosen, values, 0.0)
                parts.setdefault(column.tobytes(), column)
        own = np.concatenate([own, np.zeros((len(order) - len(rows), own.shape[1]))])
        return order, np.column_stack([*parts.values(), own])


def _present(sets: Indices, largest: int) -> Flags:
    """Return which numbers of sets there are, (largest + 1,); 0 is none."""
    found = np.zeros(largest + 1, dtype=bool)
    found[sets] = True
    found[0] = False
    return found


class MultipliesColumns(Protocol):
    """What a party has to have where products of its columns are wanted."""

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns, centred or scaled as the method wants them."""


def rank_scores(matrix: Array) -> Array:
    """Turn columns into standardised ranks, bounded whatever the units and tails.

    Shapes: matrix (n_rows, p): NaN = missing; returns (n_rows, p): average ranks with mean 0 and
    variance 1 (divisor: their number) over the observed cells of each column. 0 in missing cells
    and in columns with fewer than two different values.
    """
    scores = np.zeros(matrix.shape)
    for j in range(matrix.shape[1]):
        known = ~np.isnan(matrix[:, j])
        if not known.any():
            continue
        ranks = pd.Series(matrix[known, j]).rank().to_numpy(copy=True)
        ranks -= (len(ranks) + 1) / 2
        # Of a constant column the ranks are all (n + 1) / 2, exactly, and nothing is left.
        spread = np.sqrt(np.mean(np.square(ranks)))
        scores[known, j] = ranks / spread if spread > 0 else 0.0
    return scores


_LARGEST = 2.0**500
"""A column's root mean square must be below: its square has to fit a float."""


class EncodedColumns:
    """Columns divided by a power of two each, encoded, 0 in samples that the party lacks."""

    def __init__(self, held: HeldColumns, limbs: int, party: str, room: int = 0) -> None:
        self.held, self._limbs, self.room = held, limbs, room
        self._bits = fraction_bits(held.n_samples)
        self.shape = held.n_samples, limbs * held.values.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = squares_of(held.values)
            if held.squares is not None:
                squares = np.maximum(squares, held.squares)
        size = np.sqrt(squares / max(held.n_samples, 1))
        wrong = np.flatnonzero(~(size < _LARGEST))
        if len(wrong):
            j = int(wrong[0])
            column = held.values[:, j]
            # Only to a power of two: the message leaves the node, and a cell must not.
            finite = np.isfinite(column).all()
            largest = 2.0 ** np.ceil(np.log2(np.abs(column).max())) if finite else float("nan")
            name = repr(held.names[j]) if held.names else f"number {j}"
            raise FixedPointOverflowError(
                f"party {party!r}, column {name}: its absolute values are up to "
                f"{largest:.6g} (a power of two), and a root mean square below {_LARGEST:.3g} fits "
                "whole numbers of 64 bits; give the column in larger units, or take it out"
            )
        size[size == 0.0] = 1.0
        if held.noise is not None:
            if (size > 1.0).any():
                raise FixedPointOverflowError(
                    f"party {party!r}: columns with noise of their own are offered in units in "
                    f"which no value is above 1, and one has a root mean square of {size.max():.6g}"
                )
            size = np.ones_like(size)
        self.scale: Array = 2.0 ** (np.ceil(np.log2(size)) + room)

    def rows(self, start: int, stop: int) -> Ring:
        """Return rows of the encoded columns, of shape (stop - start, limbs * n_columns)."""
        filled = np.zeros((stop - start, len(self.scale)))
        first, last = np.searchsorted(self.held.rows, [start, stop])
        filled[self.held.rows[first:last] - start] = self.held.values[first:last] / self.scale
        return encode_rows(filled, self._bits, self._limbs)

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[Ring]:
        """Go through all rows, or some of them."""
        stop = self.shape[0] if stop is None else stop
        for at in range(start, stop, BLOCK_ROWS):
            yield self.rows(at, min(at + BLOCK_ROWS, stop))


def own_moments(held: HeldColumns, group: Indices, withheld: Flags) -> dict[str, Any]:
    """Return sums and products of a party's columns by group of rows.

    Shapes: group (n_samples,): number of each row's group, -1 for rows in none; withheld
    (n_groups, n_columns): where a column is not told of.
    """
    n_groups, n_columns = withheld.shape
    sums = np.zeros((n_groups, n_columns))
    products = np.zeros((n_groups, n_columns, n_columns))
    own = group[held.rows]
    for start in range(0, len(own), _ROWS):
        block = np.asarray(held.values[start : start + _ROWS], dtype=np.float64)
        for g, rows in enumerate(rows_by_group(own[start : start + _ROWS], n_groups)):
            if len(rows) and not withheld[g].all():
                part = block if len(rows) == len(block) else block[rows]
                sums[g] += part.sum(axis=0)
                products[g] += part.T @ part
    sums[withheld] = 0.0
    products[withheld] = 0.0
    products.swapaxes(1, 2)[withheld] = 0.0
    return {"sums": sums, "products": products}
