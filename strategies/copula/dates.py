"""Columns of dates as numbers of days, and back in the form in which they came.

Points in time become days since 1970-01-01, of the clock where the column has a time zone. Whole
days stay whole; else values are multiples of a minute or a second, as those that came are. Text is
taken for dates where it has many different values, all of one of the forms below.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flwr_vertical.arrays import Array
from flwr_vertical.tables import Kind, text_dates

_STEPS = (1.0, 1 / 1440, 1 / 86400)  # a day, a minute, a second
_NEAR = 1e-6  # of a step: days have some ten digits after the point
_EARLIEST, _LATEST = -106_000.0, 106_000.0  # the years 1679 to 2260, which pandas can hold
_ORDERS = {
    text_dates.YEAR_FIRST: "%Y{0}%m{0}%d",
    text_dates.DAY_FIRST: "%d{0}%m{0}%Y",
    text_dates.MONTH_FIRST: "%m{0}%d{0}%Y",
}
_MARKS = ("-", "/", ".")
_TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S")


@dataclass(frozen=True)
class DateForm:
    """How a column of dates was given."""

    dtype: Any  # Of the column
    # How text writes a date, as of `time.strftime`; empty where the column has points in time
    pattern: str
    step: float  # Days of which values are multiples; 0 for none

    def written(self, days: "pd.Series[Any]") -> "pd.Series[Any]":
        """Return days since 1970-01-01 in this form, Series of shape (n_rows,).

        Years before 1679 and after 2260, which noise may bring about, become these.
        """
        known = days.clip(_EARLIEST, _LATEST)
        seconds = (known * 86_400).round(0 if self.step else 6)
        times = pd.to_datetime(seconds, unit="s")
        if self.pattern:
            return times.dt.strftime(self.pattern).astype(self.dtype)
        zone = getattr(self.dtype, "tz", None)
        if zone is not None:  # clocks that are put forward have no such hour; put back, two
            first = np.ones(len(times), dtype=bool)
            times = times.dt.tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
        return times.astype(self.dtype)


def read_dates(column: "pd.Series[Any]", kind: Kind, most_levels: int) -> DateForm | None:
    """Return the form of a column of dates; None if it is none.

    Shapes: column (n_rows,): with missing cells.
    """
    if kind is Kind.DATE:
        return DateForm(column.dtype, "", _step(days_of(column)))
    if kind is not Kind.CATEGORICAL or isinstance(column.dtype, pd.CategoricalDtype):
        return None
    distinct = column.dropna().unique()
    if len(distinct) <= most_levels or not all(isinstance(value, str) for value in distinct):
        return None
    texts = pd.Series(distinct, dtype=object)
    order = text_dates.order_of(pa.array(texts.str.strip()))
    if order not in _ORDERS:
        return None
    forms = [_ORDERS[order].format(mark) + time for mark in _MARKS for time in _TIMES]
    for pattern in forms:
        times = pd.to_datetime(texts, format=pattern, errors="coerce")
        if times.notna().all() and bool((times.dt.strftime(pattern) == texts).all()):
            return DateForm(column.dtype, pattern, _step(days_of(times)))
    return None


def days_of(column: "pd.Series[Any]", form: DateForm | None = None) -> "pd.Series[Any]":
    """Return dates as days since 1970-01-01, NaN where there is none, Series of shape (n_rows,).

    Shapes: column (n_rows,): points in time, or text.
    """
    if form is not None and form.pattern:
        column = pd.to_datetime(column, format=form.pattern)
    if column.dt.tz is not None:
        column = column.dt.tz_localize(None)
    found: pd.Series[Any] = (column - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    return found.astype("float64")


def _step(days: "pd.Series[Any]") -> float:
    """Return the longest step of which all values are multiples; 0 if it is below a second."""
    values: Array = days.dropna().to_numpy(dtype=np.float64)
    for step in _STEPS:
        if bool(np.all(np.abs(values / step - np.rint(values / step)) <= _NEAR)):
            return step
    return 0.0
