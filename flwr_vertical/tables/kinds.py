"""What a column holds: continuous, binary, categorical, ordinal or count values, or dates.

The kind, not the dtype, decides which model a strategy fits to a column: the numbers 0 and 1 may
be an indicator, and the numbers 1 to 5 may be postal regions.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables.dtypes import present

_FIRST = 100  # numbers that are looked at before all others


class Kind(StrEnum):
    """The kind of a column's values."""

    CONTINUOUS = "continuous"
    BINARY = "binary"
    CATEGORICAL = "categorical"
    ORDINAL = "ordinal"
    COUNT = "count"
    DATE = "date"


def is_numeric(kind: Kind | str) -> bool:
    """Whether differences of the values are meaningful (continuous and count)."""
    return Kind(kind) in (Kind.CONTINUOUS, Kind.COUNT)


def is_discrete(kind: Kind | str) -> bool:
    """Whether the values are isolated points (all kinds but continuous ones and dates)."""
    return Kind(kind) not in (Kind.CONTINUOUS, Kind.DATE)


def refuse_dates(kinds: Mapping[str, Kind], party: str | None = None) -> None:
    """Raise if a column holds points in time, which few methods take."""
    for name, kind in kinds.items():
        if kind is Kind.DATE:
            raise DataError(
                f"{_where(party, name)} holds dates, which this method does not take; convert "
                "it to a number of days (csv.dates='days' does), or drop it"
            )


def infer_kinds(
    frame: pd.DataFrame, overrides: Mapping[str, Kind | str] | None = None, party: str | None = None
) -> dict[str, Kind]:
    """Infer the kind of each column from its dtype and its observed values.

    The first rule that holds decides:

    1. booleans, or exactly two distinct observed values that are strings, categories or whole
       numbers: binary. A pandas Categorical that declares more than two categories is not binary,
       since the others may merely not occur at this party;
    2. an ordered Categorical: ordinal;
    3. strings and unordered Categoricals: categorical;
    4. whole non-negative numbers (also as floats, which missing cells force): count;
    5. other numbers: continuous;
    6. points in time: date. Dates that are text are categorical.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (n_samples, n_columns)
        The party's columns; NaN, None and NA are missing and have no say.
    overrides : mapping of column name to Kind or its name, optional
        Kinds stated by the user, which replace the inferred ones.
    party : str, optional
        Name of the party, for messages.

    Returns
    -------
    dict of str to Kind
        In the order of the frame's columns.

    Raises
    ------
    DataError
        If a column holds durations, complex numbers or a mixture of types.
    ConfigError
        If an override names no column or no kind, or a kind that the values cannot have.
    """
    inferred = {str(name): _infer(frame[name], _where(party, name)) for name in frame.columns}
    for name, stated in (overrides or {}).items():
        if name not in inferred:
            raise ConfigError(
                f"{_where(party, name)} has a stated kind but is not in the table; "
                f"the columns are {', '.join(inferred)}"
            )
        inferred[name] = _checked(frame[name], stated, _where(party, name))
    return inferred


def _where(party: str | None, column: object) -> str:
    """Say which column of which party a message is about."""
    return f"column {column!r}" if party is None else f"column {column!r} of party {party!r}"


def _infer(column: "pd.Series[Any]", where: str) -> Kind:
    """Apply the rules of `infer_kinds` to one column."""
    family = _family(column, where)
    if family == "bool":
        return Kind.BINARY
    if family == "date":
        return Kind.DATE
    observed = present(column)
    if family == "number":
        whole = _all_whole(observed)
        if whole and observed.nunique() == 2:
            return Kind.BINARY
        return Kind.COUNT if whole and bool((observed >= 0).all()) else Kind.CONTINUOUS
    declared = column.dtype.categories if isinstance(column.dtype, pd.CategoricalDtype) else ()
    if observed.nunique() == 2 and len(declared) <= 2:
        return Kind.BINARY
    if isinstance(column.dtype, pd.CategoricalDtype) and column.dtype.ordered:
        return Kind.ORDINAL
    return Kind.CATEGORICAL


def _family(column: "pd.Series[Any]", where: str) -> str:
    """Sort a column into "bool", "number", "label" or "date", or refuse it."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "label"
    if types.is_bool_dtype(dtype):
        return "bool"
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return "number"
    if types.is_datetime64_any_dtype(dtype):
        return "date"
    held = types.infer_dtype(column, skipna=True) if types.is_object_dtype(dtype) else str(dtype)
    if held == "boolean":
        return "bool"
    if held in ("integer", "floating", "mixed-integer-float"):
        return "number"
    # For object columns, is_string_dtype would accept any content.
    strings = types.is_string_dtype(dtype) and not types.is_object_dtype(dtype)
    if held in ("string", "empty") or strings:
        return "label"
    raise DataError(
        f"{where} holds values of type {held!r}, expected numbers, booleans, strings, a pandas "
        "Categorical or points in time; convert it (a duration to a number of days, a mixture to "
        "one type) or drop it"
    )


def _all_whole(observed: "pd.Series[Any]") -> bool:
    """Whether all values are whole numbers; False when there are none."""
    values = observed.to_numpy(dtype=float)
    return values.size > 0 and are_whole(values)


def are_whole(values: Array) -> bool:
    """Whether all of these numbers are whole; of most columns the first few tell."""
    return all(bool(np.all(np.floor(part) == part)) for part in (values[:_FIRST], values[_FIRST:]))


def _checked(column: "pd.Series[Any]", stated: Kind | str, where: str) -> Kind:
    """Return a stated kind if the column's values can have it."""
    try:
        kind = Kind(stated)
    except ValueError:
        valid = ", ".join(Kind)
        raise ConfigError(f"{where} has the unknown kind {stated!r}; valid are {valid}") from None
    family = _family(column, where)
    observed = present(column)
    if (kind is Kind.DATE) != (family == "date"):
        raise ConfigError(
            f"{where} is stated to be {kind} but holds "
            + ("points in time" if family == "date" else "none: make it datetime64")
        )
    if is_numeric(kind) and family == "label":
        raise ConfigError(f"{where} is stated to be {kind} but holds labels, not numbers")
    if kind is Kind.COUNT and family == "number":
        values = observed.to_numpy(dtype=float)
        if not _all_whole(observed) or bool((values < 0).any()):
            raise ConfigError(f"{where} is stated to be count but is not whole and non-negative")
    if kind is Kind.BINARY and (distinct := observed.nunique()) > 2:
        raise ConfigError(f"{where} is stated to be binary but has {distinct} distinct values")
    ordered = isinstance(column.dtype, pd.CategoricalDtype) and bool(column.dtype.ordered)
    if kind is Kind.ORDINAL and family == "label" and not ordered:
        raise ConfigError(
            f"{where} is stated to be ordinal but holds labels without an order; "
            "make it an ordered pandas Categorical or code it as numbers"
        )
    return kind
