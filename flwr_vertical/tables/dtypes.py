"""One dtype for one meaning: NumPy numbers, booleans, strings and Categoricals, missing as NaN.

Tables arrive with NumPy, nullable, Arrow and object columns. Numerical code would otherwise meet
`pd.NA` in comparisons and objects in matrix products.
"""

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from flwr_vertical.tables.on_disk import is_on_disk

EXACT = 2**53
"""Up to which float64 holds every whole number."""


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy whose columns have plain dtypes and whose missing cells are NaN.

    Columns on disk, which nobody can change, stay the same.

    Nullable and Arrow numbers become NumPy numbers (integers with missing cells become float64),
    objects that are all numbers or all booleans become such. Only a boolean column with gaps
    keeps pandas' nullable `boolean`, since NumPy has no boolean NaN; `DataFrame.to_numpy(float)`
    turns it to 0, 1 and NaN. Columns that no rule covers (dates, mixtures) are left alone.
    """
    columns = {j: plain_column(frame.iloc[:, j]) for j in range(frame.shape[1])}
    # Of a dict pandas copies each column once, into blocks; `concat` and `copy` need three tables.
    if on_disk := {j for j, column in columns.items() if is_on_disk(column)}:
        columns = {j: c if j in on_disk else c.copy() for j, c in columns.items()}
    result = pd.DataFrame(columns, index=frame.index, copy=not on_disk)
    result.columns = frame.columns
    return result


def whole_with_gaps(column: "pd.Series[Any]") -> "pd.Series[Any] | None":
    """Return a column as pandas' `Int64` or `UInt64` if `plain` would round its whole numbers."""
    if types.is_object_dtype(column.dtype) and types.infer_dtype(column, skipna=True) == "integer":
        column = _nullable(column)
    whole = types.is_extension_array_dtype(column.dtype) and types.is_integer_dtype(column.dtype)
    if not whole or not column.isna().any() or not column.notna().any():
        return None
    if int(column.min()) >= -EXACT and int(column.max()) <= EXACT:
        return None
    return column.astype("UInt64" if types.is_unsigned_integer_dtype(column.dtype) else "Int64")


def present(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return the cells that are not missing, numbered from 0: with their index, IDs are copied."""
    return column.reset_index(drop=True).dropna()


def lost_digits(column: "pd.Series[Any]") -> tuple[int, int] | None:
    """Return how many whole numbers a column has, and how many as floats, if these are fewer."""
    if not types.is_integer_dtype(column.dtype) or not column.notna().any():
        return None
    whole = present(column)
    if max(int(whole.max()), -int(whole.min())) <= EXACT:
        return None
    n, n_taken = whole.nunique(), whole.astype("float64").nunique()
    return (n, n_taken) if n_taken < n else None


def plain_column(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return one column with a plain dtype; see `plain`."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return column
    if types.is_object_dtype(dtype):
        held = types.infer_dtype(column, skipna=True)
        if held not in ("boolean", "integer", "floating", "mixed-integer-float"):
            return column.where(column.notna(), np.nan)
        return plain_column(_nullable(column))
    if types.is_bool_dtype(dtype):
        return column.astype("boolean" if column.isna().any() else "bool")
    if types.is_extension_array_dtype(dtype) and types.is_numeric_dtype(dtype):
        whole = types.is_integer_dtype(dtype) and not column.isna().any()
        wide = whole and len(column) > 0 and int(column.max()) > np.iinfo(np.int64).max
        # astype, not to_numpy: the index stays
        return column.astype(("uint64" if wide else "int64") if whole else "float64")
    if isinstance(dtype, pd.ArrowDtype) and types.is_string_dtype(dtype):
        return column.astype(object).where(column.notna(), np.nan)
    if isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA:
        return column.astype(object).where(column.notna(), np.nan)
    return column


def _nullable(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return objects that are all numbers or all booleans in pandas' dtype that holds them."""
    held, column = types.infer_dtype(column, skipna=True), column.where(column.notna(), None)
    fitting: list[Any] = {"boolean": ["boolean"], "integer": ["Int64", "UInt64"]}.get(held, [])
    for dtype in fitting:
        with suppress(OverflowError):
            found: pd.Series[Any] = column.astype(dtype)
            return found
    return column.astype("Float64")
