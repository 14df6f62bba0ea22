"""A party's columns in bins: ranges of numbers, levels, missing cells and special values.

Numbers are cut where `trees.binning` cuts them, levels are bins. Missing cells and each special
value are bins of their own. Bins that too few rows have to be told of share one bin, as rare levels
do in a design matrix (`linear.design`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Array, Indices
from flwr_vertical.products.row_groups import levels_are_safe
from flwr_vertical.tables import Kind, Table, is_numeric
from strategies.linear.design import OTHER, encode_levels
from strategies.trees.binning import Bins, Codes, fit_bins, limit_texts

MISSING = "missing"
NO_BIN = 255
"""Number of a cell for which the fit had no bin: missing where no cell was, or a special value."""

_RARE = 3
"""Of a third of its rows a bin can be told of: a party may not choose bins by which rows have a
label, for these the server chooses."""

_ROWS_PER_BIN = 8
"""Rows of the table for each bin of all columns, at least: sums over a party's rows are told of
only where there are three for each (`policy.defaults`), and some rows have no label."""


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
    not single them out.
    """
    rows, special = table.n_samples, tuple(dict.fromkeys(float(value) for value in special))
    most = min(most, max(rows // (_ROWS_PER_BIN * len(table.columns)), 2))
    least = next(c for c in range(1, rows + 2) if 2 * c > rows or not _rare(c, rows, minimum))
    known = _without(table, special)
    fitted = fit_bins(known, most, least)
    codes = _codes(fitted, table, special, party)
    places, labels, told, n_proper, nominal = [], [], [], [], []
    for j, (name, kind) in enumerate(table.kinds.items()):
        values = known.frame[name].dropna().to_numpy(np.float64) if is_numeric(kind) else None
        own, leaves = _named(fitted, j, special, values)
        counts = np.bincount(codes[:, j], minlength=len(own))
        some = {code: _with_label(count) for code, count in enumerate(counts.tolist())}
        rare = encode_levels(name, some, minimum, party).other
        kept = [code for code in np.flatnonzero(counts).tolist() if code not in rare]
        place = np.full(len(own), NO_BIN, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        place[rare] = len(kept)
        places.append(place)
        rest = [OTHER] if rare else []
        labels.append([own[code] for code in kept] + rest)
        told.append([leaves[code] for code in kept] + rest)
        n_ranges = fitted.layout.n_bins[j] - (fitted.other[j] >= 0)
        n_proper.append(sum(code < n_ranges for code in kept))
        nominal.append(kind is Kind.CATEGORICAL)
    return ColumnBins(fitted, special, places, labels, told, n_proper, nominal)


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


def _named(
    fitted: Bins, j: int, special: Sequence[float], values: Array | None
) -> tuple[list[str], list[str]]:
    """Name the codes of a column, for its owner and for the server; `values` are its numbers."""
    rest = [MISSING, *(f"{value:.15g}" for value in special)]
    if values is None:
        levels = [str(level) for level in fitted.levels[j]]
        levels += [OTHER] * (fitted.other[j] >= 0)
        return levels + rest, levels + rest
    limits = limit_texts(fitted.edges[j], values)
    lows, highs, ends = ["-inf", *limits], [*limits, "inf"], "]" * len(limits) + ")"
    ranges = [f"({low}, {high}{end}" for low, high, end in zip(lows, highs, ends, strict=True)]
    numbered = [f"{i + 1} of {len(ranges)}" for i in range(len(ranges))]
    return ranges + rest, numbered + rest


def by_bin(columns: Sequence[str], labels: Sequence[Sequence[str]]) -> "pd.MultiIndex":
    """Return an index of all bins of columns."""
    pairs = [(name, label) for name, own in zip(columns, labels, strict=True) for label in own]
    return pd.MultiIndex.from_tuples(pairs, names=["column", "bin"])
