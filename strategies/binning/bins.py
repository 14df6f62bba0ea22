"""A party's columns in bins: ranges of numbers, levels, missing cells and special values.

Numbers are cut where `trees.binning` cuts them, levels are bins. Missing cells and each special
value are bins of their own. Bins that too few rows have to be told of share one bin, as rare levels
do in a design matrix (`linear.design`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Array, Indices
from flwr_vertical.products.row_groups import levels_are_safe
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.dtypes import present
from strategies.linear.design import OTHER, encode_levels
from strategies.trees.binning import Bins, Codes, between, cut, fit_bins, grouped, limit_texts

MISSING = "missing"
NO_BIN = 255
"""Number of a cell for which the fit had no bin: missing where no cell was, or a special value."""

_RARE = 3
"""Of a third of its rows a bin can be told of: a party may not choose bins by which rows have a
label, for these the server chooses."""

_ROWS_PER_BIN = 8
"""Rows of the table for each bin of all columns, at least: sums over a party's rows are told of
only where there are three for each (`policy.defaults`), and some rows have no label."""

_MOST_CELLS = 200
"""Of a column. Bins are made of whole cells, which follow from the table alone: so sums by bin of
two runs, with other numbers of bins or other special values, differ by whole cells."""


@dataclass(frozen=True)
class ColumnBins:
    """What turns a party's tables into numbers of bins."""

    fitted: Bins  # Codes of the columns without their special values
    special: tuple[float, ...]
    # Of each column, by code (ranges or levels, missing, special values), the number of its bin
    places: list[Indices]
    labels: list[list[str]]  # Of each column, what its bins are, for its owner
    told: list[list[str]]  # The same for the server: names of levels, and no limit of a range
    # Of each column, how many of its bins, the first ones, are ranges or levels, and whether these
    # have no order
    n_proper: list[int]
    nominal: list[bool]

    @property
    def columns(self) -> list[str]:
        """Names."""
        return self.fitted.columns

    @property
    def n_bins(self) -> list[int]:
        """Of each column."""
        return [len(own) for own in self.labels]

    def numbers(self, table: Table, party: str) -> Codes:
        """Return the bin of each cell, `NO_BIN` where there is none.

        Shapes: returns (n_rows, n_columns).
        """
        codes = _codes(self.fitted, table, self.special, party)
        places = zip(self.places, codes.T, strict=True)
        return np.stack([place[own].astype(np.uint8) for place, own in places], axis=1)


def fit_column_bins(
    table: Table,
    most: int,
    special: Sequence[float] = (),
    minimum: int | None = None,
    party: str = "",
) -> ColumnBins:
    """Put the columns of a party's table into `most` bins, fewer where the rows are few.

    `special` are numbers that stand for something else, such as -999 for "no account". So many rows
    of a bin suffice as `minimum` says, of the node's policy; else so many that a sum over them does
    not single them out. A special value that shares its cell with others, since too few rows have
    it, stays the number that it is.
    """
    rows, special = table.n_samples, tuple(dict.fromkeys(float(value) for value in special))
    most = min(most, max(rows // (_ROWS_PER_BIN * len(table.columns)), 2))
    least = next(c for c in range(1, rows + 2) if 2 * c > rows or not _rare(c, rows, minimum))
    cells = fit_bins(table, _MOST_CELLS, least)
    cells = replace(cells, edges=[_cell_edges(table, name, least) for name in table.kinds])
    codes = cells.codes(table, party)
    made = []
    for j, (name, kind) in enumerate(table.kinds.items()):
        counts = np.bincount(codes[:, j], minlength=cells.layout.n_bins[j] + 1)
        some = {code: _with_label(count) for code, count in enumerate(counts.tolist())}
        rare = encode_levels(name, some, minimum, party).other
        if is_numeric(kind):
            values = table.frame[name].to_numpy(np.float64, na_value=np.nan)
            made.append(_of_numbers(values, codes[:, j], counts, rare, special, most))
        else:
            levels, other = cells.levels[j], cells.other[j]
            made.append(_of_levels(levels, other, counts, rare, len(special), most))
    nominal = [kind is Kind.CATEGORICAL for kind in table.kinds.values()]
    fitted = replace(cells, edges=[of.edges for of in made], other=[of.other for of in made])
    return ColumnBins(
        fitted,
        special,
        [of.place for of in made],
        [of.labels for of in made],
        [of.told for of in made],
        [of.n_proper for of in made],
        nominal,
    )


def _cell_edges(table: Table, name: str, least: int) -> Array:
    if not is_numeric(table.kinds[name]):
        return np.zeros(0)
    values = present(table.frame[name]).to_numpy(np.float64)
    return cut(values, max(min(len(values) // least, _MOST_CELLS), 1), least)


@dataclass(frozen=True)
class _OneColumn:
    """Bins of a column; see `ColumnBins`."""

    edges: Array
    other: int
    place: Indices
    labels: list[str]
    told: list[str]
    n_proper: int


def _of_numbers(
    values: Array,
    codes: Codes,
    counts: Indices,
    rare: list[int],
    special: Sequence[float],
    most: int,
) -> _OneColumn:
    """Make bins of whole cells.

    Shapes: values, codes (n_rows,): numbers, and of which cell they are; counts (n_cells + 1,):
    rows of each, the last of missing ones; rare: cells that share a bin.
    """
    missing, held = len(counts) - 1, [int((values == value).sum()) for value in special]
    cell = [
        int(codes[values == v][0]) if n else missing for v, n in zip(special, held, strict=True)
    ]
    # Special values that are cells by themselves.
    alone = [i for i, n in enumerate(held) if n == counts[cell[i]] and cell[i] not in rare and n]
    apart = {*rare, *(cell[i] for i in alone)}
    ranges = [code for code in range(missing) if counts[code] and code not in apart]
    bin_of = np.full(missing, NO_BIN, dtype=np.int64)
    bin_of[ranges] = grouped(counts[ranges], most)
    n_ranges = int(bin_of[ranges].max(initial=-1)) + 1
    known = np.isfinite(values) & ~np.isin(values, [special[i] for i in alone])
    distinct, first = np.unique(values[known], return_index=True)
    of_value = bin_of[codes[known][first]]
    cuts = np.flatnonzero(np.diff(of_value)) + 1
    edges = between(distinct[cuts - 1], distinct[cuts])
    of_code = of_value[np.append(0, cuts)] if len(distinct) else np.full(1, NO_BIN)
    n_codes = len(of_code)
    tail = {n_codes: MISSING} if counts[missing] and missing not in rare else {}
    tail |= {n_codes + 1 + i: f"{special[i]:.15g}" for i in alone}
    place = np.full(n_codes + 1 + len(special), NO_BIN, dtype=np.int64)
    last = n_ranges + len(tail)  # where rare cells are
    place[:n_codes] = np.where(of_code == NO_BIN, last, of_code)
    place[n_codes] = last if missing in rare else NO_BIN
    for i, value in enumerate(special):
        place[n_codes + 1 + i] = place[np.searchsorted(edges, value)] if held[i] else NO_BIN
    place[list(tail)] = np.arange(n_ranges, last)
    limits = limit_texts(edges, values[known])
    lows, highs = ["-inf", *limits], [*limits, "inf"]
    labels = []
    for number in range(n_ranges):
        own = np.flatnonzero(of_code == number)
        closed = "]" if own[-1] < len(limits) else ")"
        labels.append(f"({lows[own[0]]}, {highs[own[-1]]}{closed}")
    told = [f"{number + 1} of {n_ranges}" for number in range(n_ranges)]
    names = [*tail.values(), *([OTHER] if rare else [])]
    return _OneColumn(edges, -1, place, labels + names, told + names, n_ranges)


def _of_levels(
    levels: list[Any], other: int, counts: Indices, rare: list[int], n_special: int, most: int
) -> _OneColumn:
    """Make bins of levels; shapes as of `_of_numbers`."""
    missing = len(counts) - 1
    kept = [code for code in range(len(levels)) if counts[code] and code not in rare]
    if len(kept) + (bool(rare) or other >= 0) > most:
        kept = sorted(sorted(kept, key=lambda code: -counts[code])[: most - 1])
        other = len(levels)  # of levels that the fit does not know, too
    n_codes = len(levels) + (other >= 0)
    names = [str(levels[code]) for code in kept]
    place = np.full(n_codes + 1 + n_special, NO_BIN, dtype=np.int64)
    if counts[missing] and missing not in rare:
        place[n_codes] = len(names)
        names.append(MISSING)
    shared = [
        code for code in range(n_codes) if code not in kept and (code in rare or counts[code])
    ]
    shared += [other] if other >= 0 else []
    place[kept], place[shared] = np.arange(len(kept)), len(names)
    if missing in rare:
        place[n_codes] = len(names)
    if shared or missing in rare:
        names.append(OTHER)
    return _OneColumn(np.zeros(0), other, place, names, names, len(kept))


def _with_label(count: int) -> int:
    """Return how many rows of a bin may have a label: by these, later, it must not be rare."""
    return -(-count // _RARE)


def _rare(count: int, rows: int, minimum: int | None) -> bool:
    some = _with_label(count)
    return not levels_are_safe(np.array([some, _with_label(rows) - some]), 1, minimum)


def _without(table: Table, special: Sequence[float]) -> Table:
    """Return a table in which special values of its numbers are missing."""
    if not special:
        return table
    frame = table.frame.copy()
    for name, kind in table.kinds.items():
        if is_numeric(kind):
            frame[name] = frame[name].where(~frame[name].isin(special))
    return replace(table, frame=frame)


def _codes(fitted: Bins, table: Table, special: Sequence[float], party: str) -> AnyArray:
    """Return codes of the cells: of ranges and levels, of missing ones, of special values."""
    codes = fitted.codes(_without(table, special), party).astype(np.int64)
    for j, name in enumerate(fitted.columns):
        if not fitted.levels[j]:
            for i, value in enumerate(special):
                here = (table.frame[name] == value).fillna(False).to_numpy(dtype=bool)
                codes[here, j] = fitted.layout.n_bins[j] + 1 + i
    return codes


def by_bin(columns: Sequence[str], labels: Sequence[Sequence[str]]) -> "pd.MultiIndex":
    """Return an index of all bins of columns."""
    pairs = [(name, label) for name, own in zip(columns, labels, strict=True) for label in own]
    return pd.MultiIndex.from_tuples(pairs, names=["column", "bin"])
