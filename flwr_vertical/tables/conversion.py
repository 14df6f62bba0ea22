"""Columns of text that are numbers or dates: which they are, and how they are read.

A column is converted where there is one way only to read all its cells, or where the owner, or the
other columns of the file, say which of two. What stays ambiguous is left as it is, with a warning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api import types

from flwr_vertical.arrays import AnyArray, Array
from flwr_vertical.tables import text_dates, text_numbers
from flwr_vertical.tables.csv_format import CsvFormat
from flwr_vertical.tables.dtypes import present
from flwr_vertical.tables.findings import Finding, Severity, examples_of
from flwr_vertical.tables.text_numbers import NumberForm

_MARK_NAMES = {"": "none", " ": "space"}


@dataclass(frozen=True)
class _Texts:
    """The distinct texts of a column and the forms in which they may be numbers."""

    distinct: pa.Array
    codes: npt.NDArray[np.intp]
    forms: list[NumberForm]

    @classmethod
    def of(cls, column: "pd.Series[Any]") -> "_Texts":
        codes, distinct = pd.factorize(column)
        texts = text_numbers.texts_of(distinct)
        return cls(texts, codes, text_numbers.possible_forms(texts))

    def spread(self, values: Array) -> AnyArray:
        """Return values of the distinct texts for all cells; whole numbers as integers."""
        whole = bool(np.all(np.mod(values, 1.0) == 0)) and bool(np.all(np.abs(values) < 2**53))
        if whole and bool((self.codes >= 0).all()):
            return values.astype(np.int64)[self.codes]
        return np.append(values, np.nan)[self.codes]


def convert_texts(
    frame: pd.DataFrame,
    columns: Sequence[str],
    stated: CsvFormat,
    read_texts: Callable[[Sequence[str]], pd.DataFrame],
    separator: str,
) -> tuple[pd.DataFrame, list[Finding]]:
    """Make numbers of text columns that hold numbers with marks, and of dates on request.

    Shapes: frame (n_rows, n_columns): as pandas reads it; changed in place; returns (n_rows,
    n_columns).
    """
    texts = {name: _Texts.of(frame[name]) for name in columns if is_text(frame[name])}
    numbers = {name: found for name, found in texts.items() if found.forms}
    if separator != "," or stated.decimal == "," or stated.thousands == ".":
        # pandas has read these with a decimal point, and they may be thousands.
        doubtful = [name for name in columns if _may_be_thousands(frame[name])]
        for name, column in (read_texts(doubtful) if doubtful else pd.DataFrame()).items():
            found = _Texts.of(column)
            if len(found.forms) == 2:
                numbers[str(name)] = found
    ambiguous = {name for name, found in numbers.items() if len(found.forms) == 2}
    decimal, source = _decimal_of_file(frame, columns, numbers, ambiguous, stated, read_texts)
    changed: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, found in numbers.items():
        form = found.forms[0]
        if name in ambiguous:
            chosen = _chosen(found.forms, decimal, stated)
            if chosen is None:
                findings.append(_ambiguous(name, found, name in texts))
                continue
            form = chosen
        changed[name] = found.spread(text_numbers.parse(found.distinct, form))
        findings.append(_said(name, found, form, stated, source if name in ambiguous else ""))
    if stated.dates is not None:
        for name, found in texts.items():
            if not found.forms:
                _convert_dates(name, found, stated.dates, changed, findings)
    # One assignment for each column would be slow with thousands of them.
    kept = [pd.Series(changed[n], frame.index, name=n) if n in changed else frame[n] for n in frame]
    return (pd.concat(kept, axis=1) if changed else frame), findings


def with_days(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose columns of points in time are days since 1970-01-01."""
    times = [name for name in frame.columns if types.is_datetime64_any_dtype(frame[name].dtype)]
    return frame.assign(**{name: text_dates.days_of(frame[name]) for name in times})


def is_text(column: "pd.Series[Any]") -> bool:
    """Return whether the observed cells of a column are strings."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return False
    if types.is_object_dtype(dtype):
        return types.infer_dtype(column, skipna=True) == "string"
    return types.is_string_dtype(dtype) and bool(column.notna().any())


def _may_be_thousands(column: "pd.Series[Any]") -> bool:
    """Return whether all cells may be written as 1.234: below 1000 with three decimals at most."""
    if column.dtype.kind != "f":
        return False
    values = np.abs(present(column).to_numpy(dtype=float))
    values = values[np.isfinite(values)]
    thousand = values * 1000.0
    near = np.abs(thousand - np.rint(thousand)) <= 1e-6 * np.maximum(thousand, 1.0)
    broken = np.mod(values, 1.0) != 0
    return bool(broken.any()) and bool(near.all()) and bool((values[broken] < 1000).all())


def _decimal_of_file(
    frame: pd.DataFrame,
    columns: Sequence[str],
    numbers: dict[str, _Texts],
    ambiguous: set[str],
    stated: CsvFormat,
    read_texts: Callable[[Sequence[str]], pd.DataFrame],
) -> tuple[str | None, str]:
    """Return the decimal mark of all columns that leave no doubt, and where it comes from."""
    if stated.decimal is not None:
        return stated.decimal, "csv.decimal"
    if not ambiguous:
        return None, ""
    marks = {
        found.forms[0].decimal: name
        for name, found in numbers.items()
        if name not in ambiguous and text_numbers.has_mark(found.distinct, found.forms[0].decimal)
    }
    for name in columns:
        if name in numbers or frame[name].dtype.kind != "f":
            continue
        values = frame[name].to_numpy(dtype=float)
        if bool((np.mod(values[np.isfinite(values)], 1.0) != 0).any()):
            written = text_numbers.texts_of(read_texts([name])[name].dropna())
            if len(text_numbers.possible_forms(written)) == 1:
                marks.setdefault(".", name)
                break
    if len(marks) != 1:
        return None, ""
    ((mark, name),) = marks.items()
    return mark, f"column {name!r}"


def _chosen(forms: list[NumberForm], decimal: str | None, stated: CsvFormat) -> NumberForm | None:
    """Return the one form that agrees with what is stated or known of the file."""
    left = [form for form in forms if decimal is None or form.decimal == decimal]
    if stated.thousands is not None:
        left = [form for form in left if form.decimal != stated.thousands]
    return left[0] if len(left) == 1 else None


def _said(name: str, found: _Texts, form: NumberForm, stated: CsvFormat, source: str) -> Finding:
    """Say how a column of text became numbers; warn if the owner states otherwise."""
    marks = []
    if text_numbers.has_mark(found.distinct, form.decimal):
        marks.append(f"decimal mark {form.decimal!r}")
    if form.thousands:
        marks.append(f"thousands mark {_mark(form.thousands)}")
    seen = f"read as numbers with {' and '.join(marks) or 'other marks'}"
    if source:
        seen += f", as {source} says"
    against = []
    if stated.decimal not in (None, form.decimal) and len(marks):
        against.append(f"csv.decimal is {stated.decimal!r}")
    if form.thousands and stated.thousands not in (None, form.thousands):
        against.append(f"csv.thousands is {_mark(stated.thousands or '')}")
    if against:
        seen = f"{seen}, though {' and '.join(against)}: its cells cannot be read otherwise"
        advice = "look at the column, and correct the file or the key"
        return Finding("number-marks", name, seen, advice, examples_of(found.distinct.to_pylist()))
    return Finding("number-marks", name, seen, "", severity=Severity.NOTE)


def _ambiguous(name: str, found: _Texts, is_text: bool) -> Finding:
    both = " or ".join(
        f"{text_numbers.parse(found.distinct.slice(0, 1), form)[0]:.15g}" for form in found.forms
    )
    left = "it stays text" if is_text else "it was read with a decimal point"
    seen = f"the mark in its numbers may be for thousands or decimals; {left}"
    advice = (
        "state csv.decimal='.' or csv.decimal=',' in the node config (csv={'decimal': ...} in "
        "read_table)"
    )
    first, *others = found.distinct.to_pylist()[:3]
    shown = (f"{first}: {both}", *examples_of(others))
    return Finding("ambiguous-numbers", name, seen, advice, shown)


def _mark(mark: str) -> str:
    return _MARK_NAMES.get(mark, repr(mark))


def _convert_dates(
    name: str, found: _Texts, stated: str, changed: dict[str, Any], findings: list[Finding]
) -> None:
    """Make numbers of days of a column of dates, if its owner asks for it and they are certain."""
    order = text_dates.order_of(found.distinct)
    if order == text_dates.AMBIGUOUS:
        by_key = {"day": text_dates.DAY_FIRST, "month": text_dates.MONTH_FIRST}
        order = by_key.get(stated.removeprefix("days").strip("-").partition("-")[0], order)
    if order is None or order in (text_dates.AMBIGUOUS, text_dates.SHORT_YEAR):
        return  # the check of the table warns of dates that are text
    days = text_dates.to_days(found.distinct, order)
    if missing := int(np.isnan(days).sum()):
        seen = f"{missing:,} of its distinct dates are in no calendar; it stays text"
        advice = "correct these cells or leave them empty"
        wrong = found.distinct.filter(pa.array(np.isnan(days))).to_pylist()
        findings.append(Finding("no-dates", name, seen, advice, examples_of(wrong)))
        return
    changed[name] = found.spread(days)
    seen = f"read as days since 1970-01-01 from dates with the {order}"
    findings.append(Finding("dates", name, seen, severity=Severity.NOTE))
