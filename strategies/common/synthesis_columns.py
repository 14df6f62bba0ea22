"""What synthesis makes of a holder's columns: their kinds, their resolutions, and what is doubtful.

The shared inference (`flwr_vertical.tables.kinds`) sorts columns for every method. Here fractions
of few values become levels, dates become numbers of days, and numbers that are whole, or all but
whole, get the resolution 1: a margin then has the values that occur, and no others.

Points in time become days since 1970-01-01, of the clock where the column has a time zone. Whole
days stay whole; else values are multiples of a minute or a second, as those that came are. Text is
taken for dates where it has many different values, all of one of the forms below.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flwr_vertical import Party
from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.log import logger
from flwr_vertical.node.kept import kept
from flwr_vertical.tables import Kind, Table, is_numeric, text_dates
from flwr_vertical.tables.codes import Levels, fit_levels, from_codes
from flwr_vertical.tables.dtypes import present

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
        """Return days since 1970-01-01 in this form; years that pandas lacks become its ends."""
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
    """Return the form of a column of dates, with missing cells; None if it is none."""
    if kind is Kind.DATE:
        return DateForm(column.dtype, "", _step(days_of(column)))
    if kind is not Kind.CATEGORICAL or isinstance(column.dtype, pd.CategoricalDtype):
        return None
    distinct = present(column).unique()
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
    """Return points in time, or text, as days since 1970-01-01, NaN where there is none."""
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


OTHER = "other"
"""Name of the level that stands for rare ones together."""

FEW = 20  # distinct values, each of as many rows on average, are levels
LIMIT = 1e8
"""Where no range is stated, values beyond this count as this."""

_WHOLE = 1e-6  # as near to a whole number as that is one
_MANY = 10  # rows a level has at least, on average
_FEW_ROWS = 50  # with fewer, numbers in a row are no sign of an identifier


@dataclass(frozen=True)
class Columns:
    """A table as synthesis takes it."""

    table: Table  # With the kinds that are used; dates are numbers of days
    steps: dict[str, float]  # Resolution of each numeric column, 0 for none
    recast: list[str]  # Columns of numbers that are taken for levels
    like_ids: list[str]  # Columns that may be identifiers
    dates: dict[str, DateForm]  # How columns of dates were given

    def doubts(self) -> dict[str, int]:
        """Count what a user should look at; the log names the columns."""
        return {"n_recast": len(self.recast), "n_like_ids": len(self.like_ids)}

    def too_close(
        self, names: Iterable[str], narrowest: Callable[[Any], Any], most: int
    ) -> list[str]:
        """Name columns the middle half of whose values spans few of the narrowest cells there."""
        found = []
        for name in sorted(names):
            values = self.table.frame[name].to_numpy(dtype=np.float64)
            low, middle, high = np.nanpercentile(values, (25, 50, 75))
            if 0.0 < high - low < most * narrowest(middle):
                found.append(name)
        return found


def read_columns(table: Table, resolution: Mapping[str, float], who: str) -> Columns:
    """Decide how each column is taken."""
    kinds, steps, recast, like_ids = dict(table.kinds), {}, [], []
    dates: dict[str, DateForm] = {}
    frame = table.frame.copy(deep=False)
    for name, kind in table.kinds.items():
        if form := read_dates(frame[name], kind, FEW):
            days = days_of(frame[name], form)
            dates[name], kinds[name], frame[name] = form, Kind.CONTINUOUS, days
            steps[name] = form.step
            if name in resolution:
                known = days.dropna().to_numpy(dtype=np.float64)
                steps[name] = _checked_step(known, resolution[name], name, who)
            continue
        column = present(table.frame[name])
        if not is_numeric(kind):
            _check_levels(column, name, who)
            continue
        values = column.to_numpy(dtype=np.float64)
        distinct = len(np.unique(values))
        if name in resolution:
            steps[name] = _checked_step(values, resolution[name], name, who)
        elif pd.api.types.is_integer_dtype(column.dtype) or _all_but_whole(values):
            steps[name] = 1.0
            span = float(values.max() - values.min()) if len(values) else 0.0
            if len(values) >= _FEW_ROWS and distinct == len(values) and span < 2 * len(values):
                like_ids.append(name)
        elif distinct <= FEW and len(values) >= FEW * distinct:
            kinds[name] = Kind.ORDINAL
            recast.append(name)
        else:
            steps[name] = 0.0
    if recast:
        logger.info("%s: taken for levels, having few values: %s; state kinds", who, recast)
    if like_ids:
        logger.warning(
            "%s: %s: every value once, and in a row: an identifier? Then leave it out",
            who,
            like_ids,
        )
    if dates:
        logger.info("%s: taken for dates, as numbers of days: %s", who, list(dates))
    if kinds != table.kinds:
        table = Table.of(frame, kinds, who)
    return Columns(table, steps, recast, like_ids, dates)


def _all_but_whole(values: Array) -> bool:
    whole = np.rint(values)
    # Of numbers that are all small, such as grams in tons, none would be left.
    tiny = not whole.any() and values.any()
    return not tiny and bool(np.all(np.abs(values - whole) <= _WHOLE))


def beyond(columns: Columns, bounds: Mapping[str, tuple[float, float]], who: str) -> list[str]:
    """Name the columns most of whose values lie beyond `LIMIT`, without bounds; log all with any.

    The values count as the ends of the range, and so would be synthetic ones.
    """
    shares: dict[str, float] = {}
    for name, kind in columns.table.kinds.items():
        if is_numeric(kind) and name not in bounds:
            values = present(columns.table.frame[name]).to_numpy(dtype=np.float64)
            shares[name] = float(np.mean(np.abs(values) > LIMIT)) if len(values) else 0.0
    if some := [name for name, share in shares.items() if share > 0]:
        logger.warning(
            "%s: %s: values beyond %s, the range of a column without bounds, count as its ends; "
            "state bounds, or take larger units",
            who,
            some,
            f"+-{LIMIT:g}",
        )
    return [name for name, share in shares.items() if share > 0.5]


def _checked_step(values: Array, step: float, name: str, who: str) -> float:
    near = np.abs(values / step - np.rint(values / step))
    # A value has some sixteen digits: of 1e7 at steps of 0.01, the quotient has 1e-7 to spare.
    if np.any(near > np.maximum(_WHOLE, 1e-15 * np.abs(values) / step)):
        raise DataError(
            f"{who}, column {name!r}: its resolution is stated as {step:g}, but values are no "
            "multiples of that; state a finer one, or none"
        )
    return float(step)


def _check_levels(column: "pd.Series[Any]", name: str, who: str) -> None:
    levels = column.nunique()
    if levels > max(FEW, len(column) / _MANY):
        numbers = pd.api.types.is_numeric_dtype(column.dtype)
        advice = (
            "state its kind as 'continuous' or 'count' if its order means anything"
            if numbers
            else "put levels together; if they are dates, write the year first, with four digits"
        )
        raise DataError(
            f"{who}, column {name!r} has {levels} levels in {len(column)} rows, more than one for "
            f"{_MANY} rows: {advice}, or leave the column out if it identifies people"
        )


def other_level(table: Table, name: str, levels: Levels) -> int | None:
    """Return the number of the level that stands for a column's rare ones."""
    own = levels.get(name, [])
    if table.kinds[name] is not Kind.CATEGORICAL or not all(isinstance(v, str) for v in own):
        return None
    return own.index(OTHER) if OTHER in own else len(own)


def with_others(codes: Array, table: Table, levels: Levels, index: "pd.Index[Any]") -> pd.DataFrame:
    """Turn numbers into a table; a number that no level of a column has is "other".

    Shapes: codes (n_rows, n_columns): values, and numbers of levels; index (n_rows,): of the new
    table.
    """
    frame, known = table.frame.iloc[:0].copy(), dict(levels)
    for j, name in enumerate(table.columns):
        own = known.get(name)
        if own is None:
            continue
        if (codes[:, j] >= len(own)).any():
            known[name] = own = [*own, OTHER]
        dtype = frame[name].dtype
        if isinstance(dtype, pd.CategoricalDtype):
            new = [level for level in own if level not in dtype.categories]
            frame[name] = frame[name].cat.add_categories(new)
    made = from_codes(codes, Table(frame, table.kinds), known, index)
    # A level that no synthetic row has is not to be named by the column's type either.
    used = made.select_dtypes("category").apply(
        lambda column: column.cat.remove_unused_categories()
    )
    return made.assign(**used)


def read_resolution(resolution: "str | Mapping[str, float] | None") -> str:
    """Return resolutions of columns as JSON text, checked."""
    if not resolution:
        return ""
    try:
        given = json.loads(resolution) if isinstance(resolution, str) else dict(resolution)
        read = {str(name): float(step) for name, step in given.items()}
    except (TypeError, ValueError, AttributeError):
        read = {"": 0.0}
    if not all(isfinite(step) and step > 0 for step in read.values()):
        raise ConfigError(
            'resolution must give each column a positive number, such as {"payment": 0.01}, got '
            f"{resolution!r}"
        )
    return json.dumps(read)


def parse_resolution(text: str) -> dict[str, float]:
    """Return the resolutions in the text that `read_resolution` made."""
    return {name: float(step) for name, step in json.loads(text or "{}").items()}


def read_stated(levels: "str | Mapping[str, Sequence[Any]] | None") -> str:
    """Return levels of columns as JSON text, checked."""
    if not levels:
        return ""
    try:
        given = json.loads(levels) if isinstance(levels, str) else dict(levels)
        read = {str(name): own for name, own in given.items()}
        fits = all(
            isinstance(own, list | tuple)
            and len(set(own)) == len(own) >= 2
            and all(isinstance(level, str | int | float) for level in own)
            for own in read.values()
        )
    except (TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise ConfigError(
            "levels must give each column a list of two or more different texts or numbers, such "
            f'as {{"sex": ["female", "male"]}}, got {levels!r}'
        )
    return json.dumps(read)


def parse_stated(text: str) -> Levels:
    """Return the levels in the text that `read_stated` made."""
    return dict(json.loads(text or "{}"))


class SynthesisParty(Party):
    """Reads own columns as synthesis takes them, and writes synthetic ones in their form."""

    takes_dates = True

    @kept("columns")
    def _columns(self) -> Columns:
        stated = parse_resolution(str(self.state["resolution"]))
        return read_columns(self._taken, stated, f"party {self.name!r}")

    @property
    def _taken(self) -> Table:
        """The own table, with the kinds that the method takes."""
        return self.table

    @kept("levels")
    def _levels(self) -> Levels:
        return fit_levels([self._columns.table])

    def _save(self, codes: Array) -> None:
        """Write synthetic rows to the own storage.

        Shapes: codes (n_rows, n_columns): values, and numbers of levels.
        """
        table = self._columns.table
        index = synthetic_ids(len(codes), table.ids.name)
        frame = with_others(codes, table, self._levels, index)
        written = {name: date.written(frame[name]) for name, date in self._columns.dates.items()}
        self.save_output(frame.assign(**written))


def synthetic_ids(count: int, name: Any = None) -> "pd.Index[Any]":
    """Return IDs that are nobody's, the same at all parties, index of shape (count,)."""
    return pd.Index([f"synthetic-{i}" for i in range(count)], name=name)
