"""What a column of text or of levels looks like: numbers and dates as text, levels, variants."""

import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from flwr_vertical.counted import counted
from flwr_vertical.tables import text_dates, text_numbers
from flwr_vertical.tables.cleaning import DROP, MISSING_IN
from flwr_vertical.tables.findings import Finding, Severity, examples_of

NEAR_UNIQUE_SHARE, NEAR_UNIQUE_ROWS = 0.5, 20
"""Text with more distinct values than this share of the cells, in as many rows, tells rows apart
and no groups."""
MANY_LEVELS = 50
RARE_ROWS = 5
"""A level in fewer rows than this is rare."""
FEW_MARKS = 3
"""Texts among numbers that are so few are probably marks of missing cells."""
MOSTLY = 0.9
"""Share of a column's distinct texts from which it is taken for numbers or dates with mistakes."""
_MARKS = {"", "na", "n/a", "nan", "<na>", "null", "#n/a"}
_UNITS = "^[-+(]?[ ]*(?:[A-Z]{3}|[$€£¥%~<>≤≥])?[ ]*[-+]?[0-9][0-9., ']*[ ]*(?:[$€£¥%]|[A-Za-z]{1,7})?[)]?$"  # noqa: E501

FREE = (
    "drop it (drop-columns) if it is a name, an address or free text; if it is an ID of the "
    "samples, name it as id-column"
)


def check_written(
    name: str, texts: Any, counts: "pd.Series[int]", stated: bool
) -> Iterator[Finding]:
    """Find text that is numbers or dates; `texts` are the distinct values."""
    if stated:
        return
    distinct = len(texts)
    order = text_dates.order_of(texts)
    if order is not None:
        yield _dates_as_text(name, order, distinct, texts)
        return
    forms = text_numbers.possible_forms(texts)
    levels = f"it is text with {distinct:,} distinct values, so a categorical column"
    if forms:
        seen = f"all cells are numbers with thousands or decimal marks; {levels}"
        advice = "state csv.decimal (and csv.thousands), or make numbers of them"
        yield Finding("numbers-as-text", name, seen, advice, examples_of(texts.to_pylist()))
        return
    share, are_numbers = text_numbers.share_of_numbers(texts)
    if share >= MOSTLY or (share > 0.5 and distinct - int(are_numbers.sum()) <= 3):
        odd = ~are_numbers
        marks = [text for text, no in zip(texts.to_pylist(), odd, strict=True) if no]
        mends = len(marks) <= FEW_MARKS and not any("," in text for text in marks)
        cells = int(counts.to_numpy()[odd].sum())
        seen = f"numbers but for {counted(cells, 'cell')}; {levels}"
        advice = f"state missing.{name} with these texts if such cells are missing, or correct them"
        mend = {MISSING_IN + name: ", ".join(marks)} if mends else {}
        yield Finding("numbers-as-text", name, seen, advice, examples_of(marks), mend)
    elif distinct > 2 and text_dates.share_of_dates(texts) >= MOSTLY:
        seen = f"most cells are dates and some are not; {levels}"
        advice = "correct the others or leave them empty, and state csv.dates='days'"
        yield Finding("dates", name, seen, advice, examples_of(texts.to_pylist()))
    elif distinct > RARE_ROWS and _share(texts, _UNITS) >= MOSTLY:
        seen = f"most cells are a number with a unit or sign; {levels}"
        advice = "write the number alone and the unit into the column's name"
        yield Finding("units", name, seen, advice, examples_of(texts.to_pylist()))


def _share(texts: Any, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(texts, pattern)).as_py() or 0.0)


def _dates_as_text(name: str, order: str, distinct: int, texts: Any) -> Finding:
    advice = {
        text_dates.AMBIGUOUS: "state csv.dates='days-day-first' or 'days-month-first' to make them "
        "days since 1970-01-01",
        text_dates.SHORT_YEAR: "write years with four digits, then state csv.dates='days'",
    }.get(order, "state csv.dates='days' to make them days since 1970-01-01")
    seen = f"dates ({order}) as text: {distinct:,} distinct values of a categorical column"
    advice = f"{advice}, or drop it; kind.{name}='categorical' if they are groups"
    doubtful = order in (text_dates.AMBIGUOUS, text_dates.SHORT_YEAR)
    mend = {} if doubtful else {"csv.dates": "days"}
    return Finding("dates", name, seen, advice, examples_of(texts.to_pylist()), mend)


def check_levels(
    name: str, counts: "pd.Series[int]", n_observed: int, stated: bool
) -> Iterator[Finding]:
    """Check how many distinct texts there are."""
    if stated:
        return
    distinct = len(counts)
    if n_observed >= NEAR_UNIQUE_ROWS and distinct > NEAR_UNIQUE_SHARE * n_observed:
        seen = f"{distinct:,} distinct texts in {n_observed:,} cells"
        yield Finding("near-unique", name, seen, FREE, examples_of(counts.index), {DROP: name})
    elif distinct > MANY_LEVELS:
        seen = f"{distinct:,} levels"
        advice = "combine levels, or expect slow and imprecise results of methods that encode them"
        yield Finding("many-levels", name, seen, advice, severity=Severity.NOTE)


_FORMS: dict[str, Callable[[str], str]] = {
    "upper and lower case": str.casefold,
    "white space": lambda text: " ".join(text.split()),
    "the Unicode form (NFC, NFD)": lambda text: unicodedata.normalize("NFC", text),
}


def check_marks(name: str, counts: "pd.Series[int]", stated: bool) -> Iterator[Finding]:
    """Find texts that a CSV file has for a missing cell, and other sources for a level."""
    marks = [str(text) for text in counts.index if str(text).strip().casefold() in _MARKS]
    if stated or not marks:
        return
    mend = {}
    if all(mark == mark.strip() for mark in marks):
        mend = {MISSING_IN + name: ", ".join(marks)}
    seen = f"{int(counts[marks].sum()):,} cells are empty or mark missing ones, and count as levels"
    advice = (
        f"state missing.{name} with these texts (with '' for the empty one) if such cells are "
        f"missing; kind.{name}='categorical' if they are a level"
    )
    yield Finding("missing-text", name, seen, advice, examples_of(marks), mend)


def check_variants(name: str, counts: "pd.Series[int]") -> Iterator[Finding]:
    """Find levels that differ by case, white space or Unicode form alone."""
    levels = [str(level) for level in counts.index]
    for what, form in _FORMS.items():
        groups: dict[str, list[str]] = {}
        for level in levels:
            groups.setdefault(form(level), []).append(level)
        same = [group for group in groups.values() if len(group) > 1]
        if same:
            seen = f"{sum(map(len, same)):,} levels differ from another one by {what} alone"
            advice = "write them in the same way if they mean the same"
            shown = examples_of((ascii(level)[1:-1] for level in same[0]), most=4)
            yield Finding("level-variants", name, seen, advice, shown)


def check_rare(name: str, counts: "pd.Series[int]", n_observed: int) -> Iterator[Finding]:
    """Find levels that few rows have."""
    rare = counts[counts < RARE_ROWS]
    if n_observed < NEAR_UNIQUE_ROWS or rare.empty or len(counts) > NEAR_UNIQUE_SHARE * n_observed:
        return
    seen = f"{len(rare):,} of {len(counts):,} levels occur in fewer than {RARE_ROWS} rows"
    advice = (
        "combine them: little can be learnt of a rare level, and its name may tell of a single row"
    )
    yield Finding(
        "rare-levels", name, seen, advice, examples_of(rare.index), severity=Severity.NOTE
    )
