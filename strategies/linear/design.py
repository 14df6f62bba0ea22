"""What the parties of regression methods share: a table as a matrix of numbers, row by sample.

Regression needs a number in every cell. Levels are encoded on request, rows with missing cells can
be left out (they then count as missing blocks), and everything else is refused with what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from flwr_vertical.products.row_groups import levels_are_safe
from flwr_vertical.scratch import ColumnStack, is_large, take
from flwr_vertical.tables import Kind, Table, is_numeric
from flwr_vertical.tables.codes import Levels, fit_levels

OTHER = "other"
_ROWS = 65_536  # at a time
_TESTED = 100  # The fewest cells of a column that tell whether rows with missing cells differ
_BY_CHANCE = 1e-3  # How often they seem to, where cells are missing at random


@dataclass(frozen=True)
class Encoded:
    """The columns that a column of levels becomes."""

    # By name, the levels for which the column is 1. The levels of no column are the baseline.
    columns: dict[str, list[Any]]
    other: list[Any]  # Levels that were too rare and count as one; empty if none was


def encode_levels(
    name: str, counts: Mapping[Any, int], minimum: int | None = None, party: str = ""
) -> Encoded:
    """Decide which levels of a column get a column of their own."""
    counts = {level: count for level, count in counts.items() if count}
    total = sum(counts.values())

    def rare(count: int) -> bool:
        return not levels_are_safe(np.array([count, total - count]), 1, minimum)

    other = [level for level, count in counts.items() if rare(count)]
    if len(counts) == 2 and other:  # both are as rare as each other: it is a flag
        other = list(counts)
    while other and len(other) < len(counts) and rare(sum(counts[level] for level in other)):
        left = [level for level in counts if level not in other]
        other.append(min(left, key=lambda level: counts[level]))
    kept = [level for level in counts if level not in other]
    columns = {f"{name}={level}": [level] for level in kept[1:]}
    if other:
        if kept:
            columns[_other_name(name, kept)] = other
        logger.info(
            "party %r, column %r: %d of its %d levels are too rare to be named and count as one",
            party,
            name,
            len(other),
            len(counts),
        )
    return Encoded(columns, other)


def _other_name(name: str, kept: list[Any]) -> str:
    label = OTHER
    while label in map(str, kept):
        label = f"{label} levels" if label == OTHER else f"{label}."
    return f"{name}={label}"


@dataclass(frozen=True)
class Design:
    """A party's table as a matrix."""

    columns: list[str]  # Names of the matrix's columns; a level's is ``column=level``
    # (n_rows, n_columns): rows that take part, in aligned order, none with a missing cell
    x: Array
    rows: Indices  # (n_rows,): their aligned row numbers, ascending
    dropped: Indices  # (n_dropped,): aligned numbers of rows left out because of a missing cell
    selective: bool = False  # Whether cells are missing by the party's other columns
    # By column of the matrix, the column of the table that it comes from and the levels for which
    # it is 1; no levels where it holds that column's numbers
    origins: dict[str, tuple[str, list[Any]]] = field(default_factory=dict)
    # Columns of levels of which at most one is held by enough rows: they have no column here
    left_out: list[str] = field(default_factory=list)
    # By column of the matrix, the columns of the table that it is made of
    sources: tuple[frozenset[str], ...] = ()
    formula: str = ""  # What makes the columns of new rows, if a formula does
    at_least: int = 0  # See `HeldColumns`


def make_design(
    table: Table, positions: Indices, party: str, min_rows: int | None = None
) -> Design:
    """Turn a party's table into a matrix, in aligned order; -1 in `positions`: left out."""
    columns, x, origins = numeric_matrix(table, party, min_rows)
    used = {column for column, _ in origins.values()}
    left_out = [name for name in table.kinds if name not in used]
    sources = tuple(frozenset([origins[name][0]]) for name in columns)
    rest = complete_rows(x, positions, party)
    return Design(columns, *rest, origins, left_out, sources)


def complete_rows(x: Array, positions: Indices, party: str) -> tuple[Array, Indices, Indices, bool]:
    """Return the complete rows in aligned order, their aligned numbers, and those of the others.

    And whether these differ in what cells they have. Shapes: x (n_own_rows, n_columns): NaN where a
    cell is missing.
    """
    order = np.argsort(positions, kind="stable")
    order = order[positions[order] >= 0]
    # A copy is as large as the table: none is made where all rows are in order.
    x = x if np.array_equal(order, np.arange(len(x))) else take(x, order)
    rows = positions[order]
    incomplete = np.zeros(len(x), dtype=bool)
    for start in range(0, len(x), _ROWS):
        incomplete[start : start + _ROWS] = np.isnan(x[start : start + _ROWS]).any(axis=1)
    kept = ~incomplete
    if not kept.any():
        raise DataError(
            f"party {party!r}: no row without missing cells takes part; impute the cells "
            "first (strategy 'fknn') or leave out the columns that are mostly missing"
        )
    selective = _means_differ(x, incomplete)
    x = x if kept.all() else take(x, np.flatnonzero(kept))
    return x, rows[kept], rows[incomplete], selective


def _means_differ(x: Array, incomplete: Flags) -> bool:
    """Tell whether some column's mean is another in incomplete rows, by Welch's test."""
    if incomplete.sum() < _TESTED:
        return False
    shift = np.nan_to_num(x[np.argmin(incomplete)])
    sums = np.zeros((3, 2, x.shape[1]))  # numbers of cells, sums and squares, by set of rows
    for start in range(0, len(x), _ROWS):
        block, of = x[start : start + _ROWS] - shift, incomplete[start : start + _ROWS]
        for k, rows in enumerate((block[~of], block[of])):
            sums[:, k] += (~np.isnan(rows)).sum(0), np.nansum(rows, 0), np.nansum(rows**2, 0)
    n = sums[0]
    tested = n.min(axis=0) >= _TESTED
    mean, square = sums[1:, :, tested] / n[:, tested]
    error = ((square - mean**2) / n[:, tested]).sum(axis=0)
    varies = error > 1e-12 * square.max(axis=0, initial=0.0)
    found = np.abs(mean[1] - mean[0])[varies] / np.sqrt(error[varies])
    return bool((found > -ndtri(_BY_CHANCE / 2.0 / x.shape[1])).any())


def numeric_matrix(
    table: Table, party: str, min_rows: int | None = None
) -> tuple[list[str], Array, dict[str, tuple[str, list[Any]]]]:
    """Turn a table into numbers, (n_rows, n_columns): NaN where a cell is missing.

    Each level but the first gets a column of its own; see `encode_levels`.
    """
    names: list[str] = []
    parts = ColumnStack(table.n_samples, len(table.kinds))
    origins: dict[str, tuple[str, list[Any]]] = {}
    for name, kind in table.kinds.items():
        column = table.frame[name]
        if is_numeric(kind) or (kind is Kind.BINARY and holds_numbers(column)):
            names.append(name)
            origins[name] = name, []
            # Of plain floats no copy is made.
            plain = column.dtype == np.float64
            parts.add(
                column.to_numpy() if plain else column.to_numpy(dtype=np.float64, na_value=np.nan)
            )
        else:
            # Levels come from this table alone.
            levels: Levels = fit_levels([Table(table.frame[[name]], {name: kind})])
            missing = column.isna().to_numpy()
            counts = {level: int((column == level).sum()) for level in levels[name]}
            for made, of in encode_levels(name, counts, min_rows, party).columns.items():
                names.append(made)
                origins[made] = name, of
                parts.add(np.where(missing, np.nan, column.isin(of).to_numpy(dtype=np.float64)))
    if not names:
        raise DataError(
            f"party {party!r} has no column left after encoding: every column has a single level, "
            "or levels that are too rare"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(
            f"party {party!r}: after encoding more than one column would be named {twice}: a level "
            "of one column reads as another column; rename the column or the level"
        )
    whole = names == list(table.frame) and bool((table.frame.dtypes == np.float64).all())
    if whole and not is_large(8 * table.frame.size):  # else `to_numpy` makes a copy
        return names, table.frame.to_numpy(), origins
    return names, parts.matrix(), origins


def holds_numbers(column: "pd.Series[Any]") -> bool:
    """Tell whether a column's cells are numbers or truth values."""
    return bool(
        pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype)
    )


def fitted_numbers(column: "pd.Series[Any]", party: str) -> Array:
    """Return the numbers of a column that held numbers when a model was fitted; NaN: missing."""
    try:
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise DataError(
            f"party {party!r}, column {column.name!r} held numbers when the model was fitted, "
            f"but has type {column.dtype} now"
        ) from None
