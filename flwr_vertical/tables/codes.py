"""Columns of any kind as numbers: what imputers and models compute with, and the way back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.log import logger
from flwr_vertical.tables.dtypes import present
from flwr_vertical.tables.kinds import Kind, is_numeric
from flwr_vertical.tables.table import Table

Levels = dict[str, list[Any]]


def fit_levels(tables: Sequence[Table]) -> Levels:
    """Collect the levels of every column that is not numeric, sorted (ordinal: in their order)."""
    levels: Levels = {}
    for name, kind in tables[0].kinds.items():
        if is_numeric(kind):
            continue
        columns = [table.frame[name] for table in tables]
        values = {value for column in columns for value in present(column).unique()}
        dtype = columns[0].dtype
        if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
            levels[name] = [value for value in dtype.categories if value in values]
        else:
            levels[name] = sorted(values, key=lambda value: (str(type(value)), value))
    return levels


def to_codes(table: Table, levels: Levels, party: str) -> Array:
    """Turn a table into numbers, NaN for missing: values, or level numbers if not numeric."""
    codes = np.empty(table.frame.shape, dtype=np.float64)
    for j, name in enumerate(table.columns):
        column = table.frame[name]
        if is_numeric(table.kinds[name]):
            codes[:, j] = column.to_numpy(dtype=np.float64, na_value=np.nan)
            continue
        number = {level: float(i) for i, level in enumerate(levels[name])}
        observed = column.notna().to_numpy()
        unseen = sorted({str(v) for v in column[observed].unique() if v not in number})
        if unseen:
            # An error goes to the server; levels are values, so only the own log has them.
            logger.error("party %r, column %r: unseen level(s) %s", party, name, unseen)
            raise DataError(
                f"party {party!r}, column {name!r}: {len(unseen)} level(s) were not seen when the "
                "donors were fitted (the party's log names them); map them to a known level, or "
                "fit again with rows that have them"
            )
        codes[:, j] = np.nan
        codes[observed, j] = [number[value] for value in column[observed]]
    return codes


_ALIKE = {"True": "1", "1": "True", "False": "0", "0": "False"}  # as files and databases write them


def level_text(value: Any) -> str:
    """Return a level as text, the same whatever type a file happens to give it."""
    # 3 and 3.0 are one level: a missing cell turns a column of whole numbers into floats.
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def as_labels(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return categories as text: those of 1, 1.0 and True of different dtypes are alike."""
    numeric = pd.to_numeric(values.astype(object), errors="coerce")
    if len(values) and bool(numeric.notna().all()):
        return numeric.astype(float).map(level_text)
    return values.astype(str)


def level_numbers(column: "pd.Series[Any]", levels: Sequence[Any], party: str = "") -> Integers:
    """Return the numbers of cells among the levels of a fit, by their text; -1 for none.

    The log says how many cells have another level, if `party` is named.

    Shapes: column (n_rows,); returns (n_rows,): -1 where a cell is missing, too.
    """
    number = {level_text(level): i for i, level in enumerate(levels)}
    number = {_ALIKE[text]: i for text, i in number.items() if text in _ALIKE} | number
    # 3.0 in a column of texts is the level 3, too.
    number = {f"{text}.0": i for text, i in number.items() if text.isdecimal()} | number
    places, values = pd.factorize(column)
    found = np.array([*(number.get(level_text(value), -1) for value in values), -1], dtype=np.int64)
    unknown = int((found[places] < 0).sum() - (places < 0).sum())
    if unknown and party:
        logger.warning(
            "party %r, column %r: %d cells have a level that the fit did not know; they count as "
            "missing",
            party,
            column.name,
            unknown,
        )
    return np.asarray(found[places])


def from_codes(codes: Array, like: Table, levels: Levels, index: "pd.Index[Any]") -> pd.DataFrame:
    """Turn numbers back into a table with the columns and dtypes of another.

    Shapes: codes (n_rows, n_columns): as `to_codes` makes them; no NaN is needed but NaN stays
    missing; returns (n_rows, n_columns).
    """
    columns: dict[str, Any] = {}
    for j, name in enumerate(like.columns):
        values, dtype = codes[:, j], like.frame[name].dtype
        missing = np.isnan(values)
        if is_numeric(like.kinds[name]):
            if pd.api.types.is_integer_dtype(dtype) and not missing.any():
                columns[name] = np.rint(values).astype(str(dtype))
            else:
                columns[name] = values
            continue
        known = levels[name]
        decoded: pd.Series[Any] = pd.Series(
            [np.nan if gone else known[int(v)] for v, gone in zip(values, missing, strict=True)],
            index=index,
            dtype=object,
        )
        if pd.api.types.is_bool_dtype(dtype):  # NumPy has no boolean NaN, pandas has
            decoded = decoded.astype("boolean" if missing.any() else "bool")
        elif pd.api.types.is_integer_dtype(dtype) and missing.any():  # as numbers above
            decoded = decoded.astype("float64")
        else:
            decoded = decoded.astype(dtype)
        columns[name] = decoded
    return pd.DataFrame(columns, index=index)


def put_in(column: "pd.Series[Any]", exact: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column as whole numbers, those in `exact` (of 64 bits) to the last digit."""
    dtype: Any = str(exact.dtype).lower()
    most = np.iinfo(dtype)
    near = column.astype("float64").round()
    near = near.clip(float(most.min), float(np.nextafter(float(most.max), 0.0)))
    whole = near.astype(dtype.replace("i", "I").replace("u", "U"))
    whole.loc[exact.index] = exact
    return whole if whole.isna().any() else whole.astype(dtype)


def fill_values(codes: Array, kinds: Mapping[str, Kind]) -> Array:
    """Return one value per column that fills a cell of which nothing is known.

    Shapes: codes (n_rows, n_columns): with at least one observed cell in each column; returns
    (n_columns,): the mean of a numeric column, the most frequent level of another (ties: the
    first).
    """
    filled = np.empty(codes.shape[1])
    for j, kind in enumerate(kinds.values()):
        observed = codes[~np.isnan(codes[:, j]), j]
        if is_numeric(kind):
            filled[j] = observed.mean()
        else:
            filled[j] = np.bincount(observed.astype(np.int64)).argmax()
    return filled
