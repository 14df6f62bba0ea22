"""Look at a table before a run: what would stop it, and what is probably not as its owner thinks.

Nothing here changes a table, and nothing leaves the machine. Findings name columns and counts;
values are in their `examples` alone, for the eyes of the table's owner.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import level_checks, text_numbers
from flwr_vertical.tables.cleaning import DROP, MISSING_IN
from flwr_vertical.tables.conversion import is_text
from flwr_vertical.tables.dtypes import lost_digits, plain_column, present
from flwr_vertical.tables.findings import Finding, Severity, examples_of
from flwr_vertical.tables.id_checks import check_id_names, check_ids
from flwr_vertical.tables.kinds import Kind, are_whole, infer_kinds
from flwr_vertical.tables.table import Table, check_shape, check_values

FEW_FRACTIONS, FEW_FRACTIONS_ROWS = 10, 50
MOSTLY_MISSING = 0.95
# Numbers by which missing cells are often coded; 99 and -1 are too often real.
SENTINELS = (0, -9, -99, -999, -9999, -99999, 999, 9999, 99999, 999999)

Step = Callable[[str], None]


def check_table(
    data: pd.DataFrame | Table,
    kinds: Mapping[str, Kind | str] | None = None,
    *,
    stated: Collection[str] = (),
    step: Step | None = None,
) -> list[Finding]:
    """Check a party's table.

    Parameters
    ----------
    data : pandas.DataFrame or Table of shape (n_samples, n_columns)
        Indexed by sample ID, from whatever source.
    kinds : mapping of column name to Kind or its name, optional
        Kinds that the owner states.
    stated : collection of str, optional
        Further columns whose kinds the owner has stated. Of those nothing is said that would
        advise to state a kind.
    step : Callable[[str], None], optional
        Told each column's name before it is looked at.

    Returns
    -------
    list of Finding
        Errors, for which `Table.of` would refuse the table, then warnings, then notes; each in
        the order of the columns. Those of how the table was read come first.
    """
    frame = data.frame if isinstance(data, Table) else data
    kinds = kinds or {}
    known = {*kinds, *stated}
    found = list(data.reading) if isinstance(data, Table) else []
    found = [one for one in found if one.code != "leading-zeros" or one.column not in known]
    try:
        check_shape(frame, "the table")
    except DataError as error:
        return [*found, Finding("shape", "", *_parts(error), severity=Severity.ERROR)]
    found += [*check_ids(frame.index), *check_id_names(frame)]
    # What the reader left as text, and has said so.
    known |= {one.column for one in found if one.code == "ambiguous-numbers"}
    for name, column in frame.items():
        if step is not None:
            step(str(name))
        own = {str(name): kinds[str(name)]} if name in kinds else {}
        exact = data.exact.get(str(name), column) if isinstance(data, Table) else column
        rounded = [] if name in known else list(_check_digits(str(name), exact))
        found += rounded or _check_column(str(name), column, own, name in known)
    for name in sorted(set(kinds) - set(frame.columns)):
        seen = f"has a stated kind but is not in the table, which has {len(frame.columns)} columns"
        found.append(Finding("kinds", name, seen, "correct its name", severity=Severity.ERROR))
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))


def _check_column(
    name: str, column: "pd.Series[Any]", kinds: Mapping[str, Kind | str], stated: bool
) -> Iterator[Finding]:
    """Check one column; what makes it unusable hides the rest."""
    values = _usable_numbers(column)
    if values is not None and not kinds:
        yield from _check_missing(name, len(column) - len(values), len(column))
        yield from _check_numbers(name, values, stated)
        return
    single = plain_column(column).to_frame()
    try:
        check_values(single, "the table", may_be_empty=False)
        infer_kinds(single, kinds)
    except (DataError, ConfigError) as error:
        observed = column.dropna()
        code = "infinite" if "infinite" in str(error) else "type"
        code = "kinds" if isinstance(error, ConfigError) else code
        code = "no-values" if observed.empty else code
        mend = {DROP: name} if code == "no-values" else {}
        seen, advice = _parts(error)
        yield Finding(code, name, seen, advice, examples_of(observed[:3]), mend, Severity.ERROR)
        return
    plain = single[name]
    observed = present(plain)
    yield from _check_missing(name, len(plain) - len(observed), len(plain))
    if types.is_numeric_dtype(plain.dtype) and not types.is_bool_dtype(plain.dtype):
        yield from _check_numbers(name, observed.to_numpy(dtype=float), stated)
        return
    counts = observed.value_counts()
    yield from _check_constant(name, len(counts), len(observed))
    if len(counts) < 2:
        return
    if types.is_datetime64_any_dtype(plain.dtype):
        seen = "points in time, which only vcds, evcds, ievcds, mst and aim take"
        advice = "for other methods csv.dates='days' makes numbers of days of them"
        yield Finding("points-in-time", name, seen, advice, severity=Severity.NOTE)
        return
    if is_text(plain):
        texts = text_numbers.texts_of(counts.index)
        written = list(level_checks.check_written(name, texts, counts, stated))
        yield from written
        if not written:
            yield from level_checks.check_levels(name, counts, len(observed), stated)
            yield from level_checks.check_marks(name, counts, stated)
        yield from level_checks.check_variants(name, counts)
    yield from level_checks.check_rare(name, counts, len(observed))


def _check_digits(name: str, column: "pd.Series[Any]") -> Iterator[Finding]:
    """Check whole numbers for such as are one number for what computes in float64."""
    if (lost := lost_digits(column)) is not None:
        seen = (
            f"whole numbers beyond 2^53, of which methods take 16 digits: {lost[0]:,} different "
            f"ones count as {lost[1]:,}"
        )
        advice = "subtract a number near them, or drop the column if it holds IDs (drop-columns)"
        yield Finding("digits", name, seen, advice, mend={DROP: name})


def _usable_numbers(column: "pd.Series[Any]") -> Array | None:
    """Return a column's observed cells if it holds finite NumPy numbers, else None; quickly."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "iuf":
        return None
    values = column.to_numpy()
    if values.dtype.kind == "f":
        if np.isinf(values).any():
            return None
        values = values[~np.isnan(values)]
    return values.astype(np.float64) if len(values) else None


def _check_missing(name: str, missing: int, n_rows: int) -> Iterator[Finding]:
    if missing > MOSTLY_MISSING * n_rows:
        seen, advice = f"{missing:,} of {n_rows:,} cells are missing", "drop it if it is of no use"
        yield Finding("mostly-missing", name, seen, advice, severity=Severity.NOTE)


def _parts(error: Exception) -> tuple[str, str]:
    """Split the text of an error into what was seen and what to do."""
    seen, _, advice = str(error).removeprefix("the table ").rpartition("; ")
    return (seen, advice) if seen else (advice, "")


def _check_constant(name: str, distinct: int, n_observed: int) -> Iterator[Finding]:
    if distinct == 1 and n_observed > 1:
        seen = f"all {n_observed:,} observed cells are the same"
        advice = "drop it (drop-columns): it tells nothing, and regressions leave it out"
        yield Finding("constant", name, seen, advice, mend={DROP: name})


def _check_numbers(name: str, values: Array, stated: bool) -> Iterator[Finding]:
    """Check a column of numbers; `values` are its observed cells, finite, at least one."""
    low, high = float(values.min()), float(values.max())
    yield from _check_constant(name, 1 if low == high else 2, len(values))
    if low == high:
        return
    for sentinel in SENTINELS:
        if sentinel in (low, high) and (count := _looks_missing(values, sentinel)):
            seen = f"{count:,} cells lie far from all others and look like a code for missing"
            advice = f"state missing.{name}={str(sentinel)!r} if these cells are missing"
            mend = {MISSING_IN + name: str(sentinel)}
            yield Finding("sentinel", name, seen, advice, (str(sentinel),), mend)
    if _are_compact_dates(values, low, high):
        seen = "all numbers look like dates YYYYMMDD; their differences are no numbers of days"
        advice = "write them as YYYY-MM-DD and state csv.dates='days', or drop the column"
        shown = examples_of(f"{value:.0f}" for value in values[:3])
        yield Finding("dates", name, seen, advice, shown)
        return
    if stated:
        return
    whole = are_whole(values)
    gapless = (
        whole and high - low == len(values) - 1 and len(values) >= level_checks.NEAR_UNIQUE_ROWS
    )
    if gapless and len(np.unique(values)) == len(values):
        seen = f"{len(values):,} whole numbers in a row without a gap, as row numbers or IDs are"
        yield Finding("row-numbers", name, seen, level_checks.FREE, severity=Severity.NOTE)
    if not whole and len(values) >= FEW_FRACTIONS_ROWS:
        head = np.unique(values[: 20 * FEW_FRACTIONS])
        if len(head) <= FEW_FRACTIONS and (n := len(np.unique(values))) <= FEW_FRACTIONS:
            seen = f"{n} distinct numbers with fractions in {len(values):,} cells"
            advice = f"state kind.{name}='ordinal' or 'categorical' if they are grades or codes"
            shown = examples_of(f"{value:g}" for value in head)
            yield Finding("few-fractions", name, seen, advice, shown, severity=Severity.NOTE)


def _looks_missing(values: Array, sentinel: int) -> int:
    """Return how many of these numbers are probably a code for missing, 0 if none are."""
    others = values[values != sentinel]
    count = len(values) - len(others)
    least, most = float(others.min()), float(others.max())
    spread = most - least
    gap = least - sentinel if sentinel < least else sentinel - most
    inside = least <= 0 <= most or np.sign(least) != np.sign(sentinel)
    # Far beyond all others, or the only ones with this sign and further away than they.
    far = gap > max(spread, 1.0) and (inside or abs(sentinel) > 2 * spread)
    # The same negative number again and again, and no other negative one.
    lonely = sentinel <= -99 and least >= 0 and count > 2
    if sentinel == 0:  # classes and counts begin with it
        far = far and len(np.unique(others)) >= FEW_FRACTIONS
    return count if far or lonely else 0


def _are_compact_dates(values: Array, low: float, high: float) -> bool:
    """Return whether all numbers are dates as YYYYMMDD between 1900 and 2100."""
    if not (low >= 19000101 and high <= 21001231) or len(values) < 2:
        return False
    month, day = np.mod(values // 100, 100), np.mod(values, 100)
    return bool(np.all((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)))
