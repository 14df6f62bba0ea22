"""A party's columns as codes: bins of numbers, levels of the others, one code for what is missing.

Numbers are cut halfway between neighbouring values. Where there are more values than bins, a value
that more rows have than fill a bin has a bin of its own, and the others share the remaining bins by
their rows, as in LightGBM (Ke et al., 2017): quantiles would leave a column that is 0 in most rows
next to no bins. Levels of an ordinal column keep their order. Those of a nominal one have none that
the party could know: a split sets one level against all others. Where the party is told an order
of its levels by their mean gradient (`LevelRounds.ranks`), a split may also be a threshold in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import AnyArray, Array, Bytes, Flags, Integers, Ring
from flwr_vertical.errors import DataError
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import fit_levels, level_numbers
from flwr_vertical.tables.dtypes import present

Codes = Bytes
_Ring = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class SlotLayout:
    """How the columns of a party become slots: sets of rows that a split may send to the left.

    Column j has ``n_bins[j]`` codes, and that very number as code of a missing cell. An ordered
    column has a slot for each code b, with the rows of code b or below; the last one holds all
    rows that are observed. A nominal column has a slot for each code, with its rows, and one with
    all rows that are observed. If its levels were sorted, it has those of an ordered column, too.
    A complete column, which lacks no cell, has no slot with all rows.

    Rows of slots are sent, but of those whose sums follow from others' (`slots_of`): thresholds of
    sorted levels, and of a complete nominal column the last level.
    """

    n_bins: tuple[int, ...]  # Of each column, at least 1 and at most 255
    nominal: tuple[bool, ...]  # Of each column
    complete: tuple[bool, ...]  # Of each column
    are_sorted: bool = False  # Whether levels of nominal columns were

    @cached_property
    def widths(self) -> list[int]:
        """Slots of each column."""
        columns = zip(self.n_bins, self.nominal, self.complete, strict=True)
        return [b - c + n * (b if self.are_sorted else 1) for b, n, c in columns]

    @cached_property
    def sent(self) -> list[int]:
        """Slots of each column whose rows are sent."""
        columns = zip(self.n_bins, self.nominal, self.complete, strict=True)
        return [b - c + n * (1 - c) for b, n, c in columns]

    @cached_property
    def n_sent(self) -> int:
        """Slots of all columns whose rows are sent."""
        return sum(self.sent)

    @cached_property
    def starts(self) -> list[int]:
        """First slot of each column."""
        return [0, *np.cumsum(self.widths).tolist()][:-1]

    @cached_property
    def n_slots(self) -> int:
        """Slots of all columns."""
        return sum(self.widths)

    def of_columns(self, chosen: Sequence[int] | npt.NDArray[np.integer]) -> "SlotLayout":
        """Return the layout of some of these columns."""
        n_bins = tuple(self.n_bins[j] for j in chosen)
        nominal, complete = (
            tuple(part[j] for j in chosen) for part in (self.nominal, self.complete)
        )
        return SlotLayout(n_bins, nominal, complete, self.are_sorted)

    @cached_property
    def single_levels(self) -> Flags:
        """Of each slot, whether it is a single level of a nominal column that is not sorted."""
        found = [
            np.arange(width) < bins * (nominal and not self.are_sorted)
            for width, bins, nominal in zip(self.widths, self.n_bins, self.nominal, strict=True)
        ]
        return np.concatenate([np.zeros(0, dtype=bool), *found])

    def locate(self, slot: int) -> tuple[int, int]:
        """Return column and place in it of a slot."""
        column = int(np.searchsorted(self.starts, slot, side="right")) - 1
        return column, slot - self.starts[column]

    def goes_left(self, codes: Codes, column: int, at: int, missing_left: bool) -> Flags:
        """Return which rows, by their codes in a column, a split sends to the left."""
        bins = self.n_bins[column]
        missing = codes == bins
        if self.nominal[column] and at < bins:
            left = codes == at
        else:
            left = (codes <= at - bins * (self.nominal[column] and self.are_sorted)) & ~missing
        return np.asarray(left | missing if missing_left else left)

    def indicators(self, codes: Codes) -> Ring:
        """Return which rows are in each slot that is sent, 0 or 1; shape (n_rows, n_sent)."""
        out = np.empty((len(codes), self.n_sent), dtype=np.uint64)
        start = 0
        for j, (width, bins) in enumerate(zip(self.sent, self.n_bins, strict=True)):
            code, at = codes[:, j, None], np.arange(width)
            inside = (code == at) | (at == bins) if self.nominal[j] else code <= at
            out[:, start : start + width] = inside & (code < bins)
            start += width
        return out

    def slots_of(self, sent: _Ring, total: _Ring) -> _Ring:
        """Return sums over slots, (n_nodes, n_slots), from those over what is sent.

        Shapes: sent (n_nodes, n_sent): a share; total (n_nodes,): sums over all rows, or 0 in a
        share that has no part of them.
        """
        found = [sent[:, :0]]
        parts = np.split(sent, np.cumsum(self.sent)[:-1], axis=1)
        columns = zip(self.n_bins, self.nominal, self.complete, strict=True)
        for own, (bins, nominal, complete) in zip(parts, columns, strict=False):
            if nominal:
                rest = (total - own.sum(axis=1, dtype=sent.dtype))[:, None]
                singles = np.concatenate([own, rest], axis=1) if complete else own[:, :bins]
                below = singles.cumsum(axis=1, dtype=sent.dtype)[:, : bins - complete]
                own = np.concatenate([singles, below if self.are_sorted else own[:, bins:]], axis=1)
            found.append(own)
        return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class Bins:
    """What turns tables into codes."""

    columns: list[str]  # Names
    nominal: list[bool]  # Of each column
    edges: list[Array]  # Of each column of numbers, where it is cut, ascending; empty for others
    levels: list[list[Any]]  # Of each other column, its levels in order; empty for numbers
    # Of each column, the code of levels that are not named: rare ones, which share it, and such
    # as the fit did not know; -1 where there is none, and they count as missing
    other: list[int]
    # Of each nominal column whose levels were sorted, their codes in the order of `levels`
    ranks: dict[int, list[int]] = field(default_factory=dict)

    def sorted_by(self, ranks: list[int]) -> "Bins":
        """Return what gives codes of nominal columns in another order: by the ranks of all."""
        columns = [j for j, nominal in enumerate(self.nominal) if nominal]
        n_codes = [self.layout.n_bins[j] for j in columns]
        ends = np.cumsum(n_codes)
        parts = [part.tolist() for part in np.split(np.asarray(ranks, dtype=int), ends)]
        expected = [list(range(n)) for n in [*n_codes, 0]]
        if [sorted(part) for part in parts] != expected:
            raise DataError(
                f"ranks of levels are no orders of the codes of nominal columns: expected "
                f"{n_codes} codes, got {len(ranks)} ranks"
            )
        by_column = dict(zip(columns, parts, strict=False))
        return replace(self, ranks=by_column)

    @property
    def layout(self) -> SlotLayout:
        """How many codes and slots there are."""
        codes = [
            len(edges) + 1 if not levels else len(levels) + (other >= 0)
            for edges, levels, other in zip(self.edges, self.levels, self.other, strict=True)
        ]
        lacking = (False,) * len(codes)  # codes alone do not tell which columns are complete
        return SlotLayout(tuple(codes), tuple(self.nominal), lacking, bool(self.ranks))

    def codes(self, table: Table, party: str) -> Codes:
        """Return codes of a table, shape (n_rows, n_columns)."""
        if absent := [name for name in self.columns if name not in table.frame.columns]:
            raise DataError(
                f"party {party!r}: its table lacks the columns {absent} of the fit; it has "
                f"{table.columns}"
            )
        out = np.empty((len(table.frame), len(self.columns)), dtype=np.uint8)
        for j, (name, n_bins) in enumerate(zip(self.columns, self.layout.n_bins, strict=True)):
            column = table.frame[name]
            missing = column.isna().to_numpy()
            if self.levels[j]:
                code = self._level_codes(column, j, n_bins, party)
            else:
                try:
                    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
                except (TypeError, ValueError):
                    raise DataError(
                        f"party {party!r}, column {name!r}: expected numbers, as in the fit, got "
                        f"dtype {column.dtype}"
                    ) from None
                code = np.searchsorted(self.edges[j], values, side="left")
            out[:, j] = np.where(missing, n_bins, code)
        return out

    def aligned_codes(self, party: Any) -> Codes:
        """Return a party's codes in aligned order; rows that it lacks are missing everywhere."""
        out = np.tile(np.array(self.layout.n_bins, dtype=np.uint8), (party.n_samples, 1))
        held = party.positions >= 0
        out[party.positions[held]] = self.codes(party.table, party.name)[held]
        return out

    def _level_codes(self, column: "pd.Series[Any]", j: int, n_bins: int, party: str) -> AnyArray:
        rest = self.other[j]
        codes = level_numbers(column, self.levels[j], party if rest < 0 else "")
        codes = np.where(codes < 0, n_bins if rest < 0 else rest, codes)
        return np.asarray(np.array([*self.ranks.get(j, range(n_bins)), n_bins])[codes])


def fit_bins(table: Table, most: int, least: int = 1) -> Bins:
    """Cut numbers, and number levels."""
    known = fit_levels([table])
    edges: list[Array] = []
    levels: list[list[Any]] = []
    other: list[int] = []
    nominal: list[bool] = []
    for name, kind in table.kinds.items():
        column = present(table.frame[name])
        if is_numeric(kind):
            edges.append(cut(column.to_numpy(dtype=np.float64), most, least))
            levels.append([])
            other.append(-1)
            nominal.append(False)
            continue
        named, rest = known[name], -1
        if len(named) > most:
            counts = column.astype(object).value_counts()[named].to_numpy()
            keep = np.sort(np.argsort(-counts, kind="stable")[: most - 1])
            named, rest = [named[i] for i in keep], most - 1
        edges.append(np.zeros(0))
        levels.append(named)
        other.append(rest)
        nominal.append(kind is Kind.CATEGORICAL and len(named) > 2)
    return Bins(table.columns, nominal, edges, levels, other)


def cut(values: Array, most: int, least: int = 1) -> Array:
    """Return where a column is cut into bins, ascending.

    Shapes: values (n_rows,): finite; returns (n_bins - 1,): A value at or below the first is in
    bin 0.
    """
    distinct, counts = np.unique(values, return_counts=True)
    ends = _of_at_least(least, np.concatenate([[0], np.cumsum(counts)]), _ends(counts, most))
    return between(distinct[ends[:-1] - 1], distinct[ends[:-1]])


def between(below: Array, above: Array) -> Array:
    """Return where neighbouring values are told apart: a value at a limit is below."""
    middle = (below + above) / 2.0
    return np.asarray(np.where(middle < above, middle, below))  # neighbours have none between them


def limit_texts(edges: Array, values: Array) -> list[str]:
    """Return where a column is cut, as text.

    Whole numbers and halves, as of dates like 20240115, stand in full, others with six digits or
    as many as tell them from their neighbours.

    Shapes: edges (n_edges,): ascending; values (n_rows,): of the column, finite.
    """
    if not len(edges):
        return []
    ends = np.concatenate([[values.min()], edges, [values.max()]])
    room = np.diff(ends) / 1000.0
    return [
        _limit_text(edge, min(below, above))
        for edge, below, above in zip(edges.tolist(), room[:-1], room[1:], strict=True)
    ]


def _limit_text(edge: float, error: float) -> str:
    if abs(edge) < 1e15 and (2.0 * edge).is_integer():
        error = 0.0
    digits = next(d for d in range(6, 18) if d == 17 or abs(float(f"{edge:.{d}g}") - edge) <= error)
    return f"{float(f'{edge:.{digits}g}'):.{max(digits, 15)}g}"


def _ends(counts: Integers, most: int) -> list[int]:
    """Return how many values there are up to the end of each bin, for the rows of each value."""
    frequent = _frequent(counts, most)
    rare_rows = np.concatenate([[0], np.cumsum(np.where(frequent, 0, counts))])
    stops = np.append(np.flatnonzero(frequent), len(counts))
    left, ends = most - int(frequent.sum()), [0]
    while (start := ends[-1]) < len(counts):
        stop = int(stops[np.searchsorted(stops, start)])
        if stop == start:
            ends.append(start + 1)
            continue
        rest, rows = rare_rows[-1] - rare_rows[start], rare_rows[stop] - rare_rows[start]
        full = int(np.searchsorted(rare_rows, rare_rows[start] + rest / left))
        # Too few rows for a bin, before a frequent value, join its bin; the last bin is kept for
        # the rows after them.
        joins = full > stop and rows < rest and (left == 1 or 2 * rows * left < rest)
        ends.append(stop + 1 if joins else min(full, stop))
        left -= not joins
    return ends[1:]


def grouped(counts: Integers, most: int) -> Integers:
    """Return the number of each cell's bin, where cells of so many rows share `most` bins."""
    starts = _frequent(counts, most)
    rest, left = np.flatnonzero(~starts), most - int(starts.sum())
    rows = counts[rest]
    place = ((np.cumsum(rows) - rows / 2.0) * left) // max(int(rows.sum()), 1)
    if left:
        starts[rest[np.unique(place, return_index=True)[1]]] = True
    starts[:1] = True
    return np.cumsum(starts) - 1


def _frequent(counts: Integers, most: int) -> Flags:
    """Return which values more rows have than fill one of the bins that the others leave."""
    found, rest = np.zeros(len(counts), dtype=bool), int(counts.sum())
    for taken, i in enumerate(np.argsort(-counts, kind="stable")[:most]):
        if counts[i] * (most - taken) < rest:
            break
        found[i], rest = True, rest - counts[i]
    return found


def _of_at_least(least: int, rows: Integers, ends: list[int]) -> Integers:
    """Return ends of bins, neighbours merged where rows are few; `rows` has those before each."""
    kept = [0]
    for end in ends:
        if rows[end] - rows[kept[-1]] >= least:
            kept.append(end)
    return np.array([*kept[1:-1], ends[-1]] if ends else [0], dtype=np.int64)


def narrowest(numbers: Sequence[int] | AnyArray) -> AnyArray:
    """Return whole numbers of -1 and above in the narrowest signed type that holds them."""
    found = np.asarray(numbers)
    largest = int(found.max(initial=0))
    for dtype in (np.int8, np.int16, np.int32):
        if largest <= np.iinfo(dtype).max:
            return found.astype(dtype)
    return found.astype(np.int64)


def packed(numbers: AnyArray) -> Bytes:
    """Return whole numbers of -1 and above, (n_trees, n_rows), in as few bits as they need.

    Shapes: returns (n_trees, n_bits, ceil(n_rows / 8)).
    """
    largest = int(numbers.max(initial=-1)) + 1
    above = narrowest(numbers + 1)
    bits = [
        np.packbits((above >> bit & 1).astype(bool), axis=1)
        for bit in range(max(largest.bit_length(), 1))
    ]
    return np.stack(bits, axis=1)


def unpacked(content: Bytes, n_rows: int) -> AnyArray:
    """Return the numbers that `packed` wrote, in the narrowest signed type."""
    n_bits = min(content.shape[1], 31)
    dtype = np.int8 if n_bits < 8 else np.int16 if n_bits < 16 else np.int32
    out = np.full((len(content), n_rows), -1, dtype=dtype)
    for bit in range(n_bits):
        out += np.unpackbits(content[:, bit], axis=1, count=n_rows) * dtype(1 << bit)
    return out
