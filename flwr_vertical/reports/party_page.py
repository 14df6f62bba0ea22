"""What a party's own page says of its table: what was missing, what was filled in, rows it got."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from flwr_vertical.grading.quality import is_synthetic
from flwr_vertical.pages.page import Section, dataframe_html
from flwr_vertical.results.data import ResultData

_MOST_ROWS = 12
_MOST_COLUMNS = 12


def own_facts(result: ResultData, party: str) -> dict[str, str]:
    """Return the cards under the title of a party's page."""
    before, after = result.originals[party], result.tables.get(party)
    facts = {"Own rows": f"{len(before):,}", "Columns": f"{before.shape[1]:,}"}
    if before.size:
        facts["Missing cells"] = f"{before.isna().to_numpy().mean():.1%}"
    if after is None:
        return facts
    if is_synthetic(before, after):
        return {**facts, "Synthetic rows": f"{len(after):,}"}
    facts["Cells filled in"] = f"{filled_cells(before, after):,}"
    facts["Rows got"] = f"{len(_got(before, after)):,}"
    return facts


def own_sentence(result: ResultData, party: str) -> str:
    """Return the sentence under the title of a party's page."""
    before, after = result.originals[party], result.tables.get(party)
    text = f"Party {party!r} gave {len(before):,} rows of {before.shape[1]:,} columns"
    if after is None:
        return text + "; its table is unchanged."
    if is_synthetic(before, after):
        return text + f" and got {len(after):,} synthetic rows."
    text += f"; {filled_cells(before, after):,} of its missing cells are filled in"
    got = len(_got(before, after))
    return text + (f", and it got {got:,} rows that only others had." if got else ".")


def rows_got(result: ResultData, party: str) -> Iterator[Section]:
    """Return the section with rows that a party had not before, if there are any."""
    before, after = result.originals[party], result.tables.get(party)
    if after is None or before.empty:
        return
    made = is_synthetic(before, after)
    got = after if made else _got(before, after)
    if not len(got):
        return
    shown = got.iloc[:_MOST_ROWS, :_MOST_COLUMNS]
    what = "synthetic rows" if made else "rows of samples that this party had no row of"
    caption = f"{len(got):,} {what}; {len(shown)} are shown here, all are in the table."
    if left := got.shape[1] - shown.shape[1]:
        caption += f" {left} more columns are not shown."
    yield Section("Rows that it got", dataframe_html(shown), caption)


def filled_cells(before: pd.DataFrame, after: pd.DataFrame) -> int:
    """Return how many missing cells of a party's own rows have a value afterwards."""
    columns = [name for name in before if name in after]
    rows = before.index.intersection(after.index)
    filled = before.loc[rows, columns].isna() & after.loc[rows, columns].notna()
    return int(filled.to_numpy().sum())


def _got(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    return after[~after.index.isin(before.index)]
