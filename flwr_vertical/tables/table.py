"""A party's data: columns about samples, indexed by sample ID."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from pandas.api import types

from flwr_vertical.arrays import Flags
from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.tables.dtypes import lost_digits, plain, whole_with_gaps
from flwr_vertical.tables.findings import Finding
from flwr_vertical.tables.ids import count_repeated, join_levels, without_categories
from flwr_vertical.tables.kinds import Kind, infer_kinds


@dataclass(frozen=True)
class Table:
    """A party's data and the kinds of its columns.

    A sample of which the party knows nothing has no row (a missing block); a value that it does
    not know of a sample it has is NaN (a missing cell). Build it with `Table.of`, which checks the
    data; the constructor does not.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (n_samples, n_columns)
        Indexed by sample ID, with plain dtypes (see `flwr_vertical.tables.dtypes`).
    kinds : dict of str to Kind
        One for each column.
    reading : tuple of Finding
        How the file was read from which the table comes, where it left a choice.
    exact : dict of str to pandas.Series
        Whole numbers beyond 2^53 of columns with gaps, which `frame` has rounded.
    """

    frame: pd.DataFrame
    kinds: dict[str, Kind]
    reading: tuple[Finding, ...] = ()
    exact: "dict[str, pd.Series[Any]]" = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        data: "pd.DataFrame | Table",
        kinds: Mapping[str, Kind | str] | None = None,
        party: str | None = None,
        like: "Table | None" = None,
        new_rows: bool = False,
    ) -> Self:
        """Check a party's data and make a table of it.

        Parameters
        ----------
        data : pandas.DataFrame or Table, shape (n_samples, n_columns)
            Indexed by sample ID (integers or strings); a MultiIndex makes composite IDs, joined
            into one text. None and NA count as missing, like NaN.
            Of a Table, the kinds are kept where `kinds` does not restate them.
        kinds : mapping of column name to Kind or its name, optional
            Kinds that inference would get wrong.
        party : str, optional
            Name of the party, for messages.
        like : Table, optional
            Earlier data, of which these are new rows: its columns must be there, their kinds
            are its kinds, and they may be all missing.
        new_rows : bool, default False
            Whether these are new rows of an earlier model: columns may be all missing.

        Returns
        -------
        Table
            Shares no memory with `data`, but for columns on disk, which nobody can change.

        Raises
        ------
        DataError
            If there are no rows or columns, IDs are missing, repeated or of mixed type, column
            names are not unique strings, a column is all missing, infinite somewhere or of a type
            that no kind covers. Messages count IDs and never show them.
        ConfigError
            If `kinds` names an unknown column or kind, or one that the values cannot have.
        """
        who = "the table" if party is None else f"the table of party {party!r}"
        reading: tuple[Finding, ...] = ()
        exact: dict[str, pd.Series[Any]] = {}
        if isinstance(data, Table):
            kinds, reading = {**data.kinds, **(kinds or {})}, data.reading
            exact = data.exact
            data = data.frame
        if not isinstance(data, pd.DataFrame):
            raise DataError(
                f"{who} must be a DataFrame by sample ID, see read_table, got {type(data).__name__}"
            )
        check_shape(data, who)
        frame = plain(data)
        frame.index = checked_ids(data.index, who)
        for name in [] if exact else frame.columns:
            if (whole := whole_with_gaps(data[name])) is not None:
                exact[str(name)] = whole.set_axis(frame.index)
        check_values(frame, who, may_be_empty=new_rows or like is not None)
        if like is not None:
            return cls(*_as_in(frame, like, who), reading, exact)
        return cls(frame, infer_kinds(frame, kinds, party), reading, exact)

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return len(self.frame)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [str(name) for name in self.frame.columns]

    @property
    def missing(self) -> Flags:
        """Which cells are missing (True), shape (n_samples, n_columns)."""
        return self.frame.isna().to_numpy(dtype=np.bool_)

    @property
    def by_kind(self) -> pd.DataFrame:
        """The frame, with categories where numbers are names of levels."""
        coded = [
            name
            for name, kind in self.kinds.items()
            if kind is Kind.CATEGORICAL and types.is_numeric_dtype(self.frame[name].dtype)
        ]
        return self.frame.astype(dict.fromkeys(coded, "category"))

    @property
    def ids(self) -> "pd.Index[Any]":
        """The sample IDs, in the order of the rows, shape (n_samples,)."""
        return self.frame.index


def whole_numbers(index: "pd.Index[Any]") -> "pd.Index[Any]":
    """Return floats as integers, as of IDs of a column that had gaps; (0,) if some are not."""
    values = index.to_numpy(dtype=np.float64, na_value=np.nan)
    whole = bool((np.abs(values) < 2.0**53).all() and (values == np.round(values)).all())
    return pd.Index(values.astype(np.int64), name=index.name) if whole else index[:0]


def checked_ids(index: "pd.Index[Any]", who: str) -> "pd.Index[Any]":
    """Return sample IDs as a plain index of integers or of strings; composite ones are joined.

    Parameters
    ----------
    index : pandas.Index, shape (n_samples,)
    who : str
        Whose IDs they are, to begin messages with, such as "the table of party 'bank'".

    Raises
    ------
    DataError
        If an ID is missing or repeated, or they are not all whole numbers or all strings.
    """
    if isinstance(index, pd.MultiIndex):
        gaps = np.any([index.get_level_values(k).isna() for k in range(index.nlevels)], axis=0)
        if missing := int(gaps.sum()):
            raise DataError(
                f"{who} has {counted(missing, 'row')} whose composite sample ID lacks a part; "
                "drop these"
            )
        index = join_levels(index)
    if missing := int(np.count_nonzero(index.isna())):
        raise DataError(
            f"{who} has {counted(missing, 'row')} without a sample ID; give each one or drop it"
        )
    index = without_categories(index)
    held = types.infer_dtype(index, skipna=False)
    if held == "floating" and len(whole := whole_numbers(index)):
        held, index = "integer", whole
    if held not in ("integer", "string"):
        raise DataError(
            f"{who} has sample IDs of type {held!r}, expected all integers or all strings; "
            "convert them, in the same way at every party"
        )
    if repeated := count_repeated(index):
        other = f", or name another ID column than {index.name!r}" if index.name else ""
        raise DataError(
            f"{who} has {counted(repeated, 'row')} whose sample ID repeats an earlier one, "
            f"expected one row for each sample; drop or combine them{other}"
        )
    if held != "integer":
        return index
    largest = np.iinfo(np.int64)
    if len(index) and not largest.min <= int(index.min()) <= int(index.max()) <= largest.max:
        raise DataError(
            f"{who} has integer sample IDs beyond 64 bits with a sign; make all of them strings"
        )
    # Signed NumPy integers stay; nullable, unsigned and object ones would not join with others.
    signed = isinstance(index.dtype, np.dtype) and index.dtype.kind == "i"
    return index if signed else index.astype("int64")


def label_index(labels: "pd.Series[Any]", who: str = "labels") -> "pd.Index[Any]":
    """Return the sample IDs of labels, or of weights, checked; so are the labels."""
    check_series(labels, who)
    try:
        labels.to_numpy(dtype=float)
    except (TypeError, ValueError):
        raise DataError(f"{who} must be numbers, got dtype {labels.dtype}; convert them") from None
    check_digits(labels, who)
    return checked_ids(labels.index, f"the table of {who}")


def check_series(labels: Any, who: str) -> None:
    """Refuse what is no series, and what turns into floats without a word: times, complex ones."""
    if not isinstance(labels, pd.Series):
        columns, advice = getattr(labels, "columns", None), ""
        if columns is not None:
            advice = f" with the columns {list(map(str, columns))[:5]}: take one of them"
            if who == "labels":
                advice += "; of times and events, what `strategies.cox.survival_labels` makes"
        raise DataError(
            f"{who} must be a pandas Series indexed by sample ID, got "
            f"{type(labels).__name__}{advice}"
        )
    if labels.dtype.kind in "mMc":
        raise DataError(
            f"{who} must be numbers, got dtype {labels.dtype}; convert dates and durations to a "
            "number of days"
        )


def check_digits(labels: "pd.Series[Any]", who: str) -> None:
    """Refuse whole numbers of which several would be one number or one class."""
    if (lost := lost_digits(labels)) is not None:
        raise DataError(
            f"{who} are whole numbers beyond 2^53, of which methods take 16 digits: {lost[0]:,} "
            f"different ones would count as {lost[1]:,}; number classes 0, 1, ..., and subtract a "
            "number near them from others"
        )


def check_shape(frame: pd.DataFrame, who: str) -> None:
    """Refuse a frame without cells or with unusable column names."""
    if frame.shape[1] == 0 or frame.shape[0] == 0:
        raise DataError(
            f"{who} has {frame.shape[0]} rows and {frame.shape[1]} columns besides the sample ID, "
            "expected at least one of each"
        )
    unnamed = [name for name in frame.columns if not isinstance(name, str) or not name]
    if unnamed:
        raise DataError(f"{who} has column names that are no strings or empty: {unnamed!r}; rename")
    if not frame.columns.is_unique:
        twice = sorted(set(frame.columns[frame.columns.duplicated()]))
        raise DataError(f"{who} has several columns of the same name: {', '.join(twice)}; rename")


def _as_in(frame: pd.DataFrame, like: Table, who: str) -> tuple[pd.DataFrame, dict[str, Kind]]:
    """Give new rows the kinds and order of earlier ones; further columns come at the end."""
    shared, further = like.columns, frame.columns.difference(like.columns, sort=False)
    if lacking := [name for name in shared if name not in frame]:
        raise DataError(
            f"{who} has columns {list(frame.columns)}, and lacks {lacking} of the earlier rows; "
            "they must be there"
        )
    if [name for name in frame if name in shared] != shared:
        frame = frame[[*shared, *further]]
    kinds = {**like.kinds, **infer_kinds(frame[further])}
    for name in frame[shared].columns[frame[shared].isna().all()]:
        earlier = like.frame[name].dtype
        if types.is_integer_dtype(earlier):
            frame[name] = frame[name].astype("float64")
        elif types.is_bool_dtype(earlier):
            frame[name] = frame[name].astype("boolean")
        else:
            frame[name] = frame[name].astype(earlier)
    return frame, {str(name): kinds[str(name)] for name in frame.columns}


def check_values(frame: pd.DataFrame, who: str, may_be_empty: bool) -> None:
    """Refuse columns without a value and infinite values."""
    # Column by column: flags of all cells take an eighth of the table.
    empty = [str(name) for name, column in frame.items() if column.isna().all()]
    if empty and not may_be_empty:
        raise DataError(
            f"{who} has columns without a single observed value: {', '.join(empty)}; drop them, or "
            "read them again if they should hold values"
        )
    infinite = {
        str(name): int(np.isinf(frame[name].to_numpy()).sum())
        for name in frame.columns
        if types.is_float_dtype(frame[name].dtype)
    }
    if found := [f"{name} ({count})" for name, count in infinite.items() if count]:
        raise DataError(
            f"{who} has infinite values in {', '.join(found)}; replace them by numbers or by NaN"
        )
