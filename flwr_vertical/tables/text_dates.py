"""Dates in columns of text: which order their parts have, and dates as numbers of days."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from flwr_vertical.arrays import Array

_TIME = "(?:[T ]+[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?(?:Z|UTC|[-+][0-9]{2}:?[0-9]{2}))?)?"  # noqa: E501
_YEAR_FIRST = f"^[0-9]{{4}}[-/.][0-9]{{1,2}}[-/.][0-9]{{1,2}}{_TIME}$"
_YEAR_LAST = f"^[0-9]{{1,2}}[-/.][0-9]{{1,2}}[-/.][0-9]{{4}}{_TIME}$"
_SHORT_YEAR = f"^[0-9]{{1,2}}[-/.][0-9]{{1,2}}[-/.][0-9]{{2}}{_TIME}$"
_PARTS = "^([0-9]+)([-/.])([0-9]+)[-/.]([0-9]+)(.*)$"
_EPOCH = pd.Timestamp("1970-01-01", tz="UTC")

YEAR_FIRST, DAY_FIRST, MONTH_FIRST = "year first", "day first", "month first"
AMBIGUOUS, SHORT_YEAR = "day or month first", "years of two digits"


def order_of(texts: pa.Array) -> str | None:
    """Find how dates are written, in texts without missing cells and outer white space."""
    if not len(texts):
        return None
    for pattern, order in ((_YEAR_FIRST, YEAR_FIRST), (_SHORT_YEAR, SHORT_YEAR)):
        if _all(texts, pattern):
            return order
    if not _all(texts, _YEAR_LAST):
        return None
    parts = _parts(texts)
    first, second = parts[0].astype(int), parts[2].astype(int)
    if bool((first > 12).any()):
        return DAY_FIRST if bool((second <= 12).all()) else None
    if bool((second > 12).any()):
        return MONTH_FIRST
    return DAY_FIRST if bool((parts[1] == ".").all()) else AMBIGUOUS


def share_of_dates(texts: pa.Array) -> float:
    """Return the share of texts that are dates in any order."""
    pattern = "|".join(f"(?:{p})" for p in (_YEAR_FIRST, _YEAR_LAST, _SHORT_YEAR))
    return float(pc.mean(pc.match_substring_regex(texts, pattern)).as_py() or 0.0)


def to_days(texts: pa.Array, order: str) -> Array:
    """Return dates as days since 1970-01-01 (UTC if no zone), (n_texts,); NaN is no date."""
    parts = _parts(texts)
    places = {YEAR_FIRST: (0, 2, 3), DAY_FIRST: (3, 2, 0), MONTH_FIRST: (3, 0, 2)}[order]
    year, month, day = (parts[place].str.zfill(2) for place in places)
    rest = parts[4].str.strip().str.replace(",", ".").str.replace(r"^T\s*", "", regex=True)
    rest = rest.str.replace(r"^(\d):", r"0\1:", regex=True).str.replace(" UTC", "Z")
    iso = (year + "-" + month + "-" + day).str.cat(rest.where(rest == "", "T" + rest.str.lstrip()))
    iso = iso.str.replace(r"\s+(?=Z|[-+]\d)", "", regex=True)
    return days_of(pd.to_datetime(iso, format="ISO8601", utc=True, errors="coerce"))


def days_of(times: "pd.Series[Any]") -> Array:
    """Return points in time as days since 1970-01-01, shape (n_times,)."""
    if times.dt.tz is None:
        times = times.dt.tz_localize("UTC")
    return np.asarray((times - _EPOCH) / pd.Timedelta(days=1), dtype=np.float64)


def _all(texts: pa.Array, pattern: str) -> bool:
    head = pc.match_substring_regex(texts.slice(0, 200), pattern)
    return bool(pc.all(head).as_py()) and bool(
        pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    )


def _parts(texts: pa.Array) -> pd.DataFrame:
    """Split dates into first number, mark, second number, third number and time."""
    return pd.Series(texts.to_pylist(), dtype=str).str.extract(_PARTS)
