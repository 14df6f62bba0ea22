"""Columns that earlier runs told of, whatever their methods, made of the table again.

Columns of the same cells together may tell a row apart (`products.lone_rows`), and sums of several
runs are of the same rows. So a party writes down, in its privacy ledger, how it makes the columns
that it tells of: a kind, and what that kind takes. Cells are in no ledger.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_vertical import Party, Table
from flwr_vertical.arrays import AnyArray, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.privacy_ledger.row_history import ToldColumns
from flwr_vertical.privacy_ledger.row_sets import refine
from flwr_vertical.products import HeldColumns
from flwr_vertical.products.columns import EarlierColumns
from flwr_vertical.registry import load_strategy
from strategies.linear.design import numeric_matrix
from strategies.linear.formula_design import made_columns

COLUMNS, FORMULA = "columns", "formula"
EXPLORE, NORMAL, LEAVES = "explore", "joint-normal", "fedpsg-ar"
"""Kinds of columns: those of a regression, of its formula, and of other strategies, by name, whose
parties have `made_again`."""

_AT_FIRST = "node.told columns."  # a prefix that the server may not write to

Made = tuple[AnyArray, Iterable[frozenset[str]]]
"""Columns over all rows of a table, and of which columns of the table each is made."""


def words_of(kind: str, *given: Any) -> str:
    """Return how columns are made, as it is written down."""
    return json.dumps([kind, *given])


def earlier_formulas(party: Party, formula: str) -> list[str]:
    """Return the formulas that were told of before this one, as far as the table has them."""
    noted = party.privacy_ledger.columns_told(party.rows_in_ledger())
    found = [json.loads(words) for words in _before(noted, words_of(FORMULA, formula))]
    texts = [given[0] for kind, *given in found if kind == FORMULA]
    return [text for text in texts if _made(party, words_of(FORMULA, text)) is not None]


def beside_earlier(party: Party, held: HeldColumns, words: str) -> HeldColumns:
    """Write down how columns are made, and have them judged beside those that others told of."""
    rows = party.rows_in_ledger()
    now = party.privacy_ledger.columns_told(rows, words)
    every, kept = list(range(held.values.shape[1])), dict[bytes, EarlierColumns]()
    # Beside the same columns as earlier runs told of them: a run tells of them over the rows that
    # it shares with each other party, and of sets that are parts of these there is no sum.
    key = _AT_FIRST + hashlib.sha256(words.encode()).hexdigest()
    if key not in party.state:
        party.state[key] = now[words][1] if now[words][0] else np.zeros(0, dtype=np.int64)
    at_first = np.asarray(party.state[key])

    def beside(noted: ToldColumns, group: Indices) -> EarlierColumns:
        own, sets = noted[words]
        # The same again adds nothing: what came later was judged beside it. Over other rows it does
        again = own == every and not refine(sets, group).is_new.any()
        found = _before(noted, words) if again else noted | {words: (own, at_first)}
        found = {text: told for text, told in found.items() if told[0] and told[1].any()}
        parts = [f"{text}{told}".encode() + at.tobytes() for text, (told, at) in found.items()]
        if (digest := hashlib.sha256(b"".join(parts)).digest()) not in kept:
            kept.clear()
            kept[digest] = _columns_of(party, found)
        return kept[digest]

    beside(now, np.full(len(rows), -1))  # made before the ledger is locked, as long as it holds
    return replace(held, made_by=words, beside=beside)


def _columns_of(party: Party, found: ToldColumns) -> EarlierColumns:
    """Make the columns again that were told of."""
    none = np.zeros((party.table.n_samples, 0))
    columns, places, sources = [none], [none.astype(np.int64)], []
    for words, (told, sets) in found.items():
        x, of = _made(party, words) or (none, ())
        for j, cells in enumerate(of):
            if j in (told or ()):
                column = np.asarray(x[:, j], dtype=np.float64)
                column = np.nan_to_num(column - np.nanmean(column))  # a missing cell is the mean
                columns.append(column / (np.abs(column).max(initial=0.0) or 1.0))
                places.append(sets)
                sources.append(cells)
    return EarlierColumns(np.column_stack(columns), np.column_stack(places), tuple(sources))


def _before(noted: ToldColumns, words: str) -> ToldColumns:
    return {text: noted[text] for text in list(noted)[: [*noted, words].index(words)]}


def _made(party: Party, words: str) -> Made | None:
    """Make columns again; None if the table, which may have changed, has not what they need."""
    kind, *given = json.loads(words)
    table, smallest = party.table, party.policy.min_rows
    try:
        if kind == FORMULA:
            made = made_columns(table, party.name, given[0], smallest)
            return made.x, made.sources
        kept = [name for name in given[0] if name in table.kinds]
        own = Table(table.frame[kept], {name: table.kinds[name] for name in kept})
        if kind != COLUMNS:
            maker: Any = load_strategy(kind).party
            x, sources = maker.made_again(own, smallest, *given[1:])
            return np.asarray(x), tuple(sources)
        names, x, origins = numeric_matrix(own, party.name, smallest)
    except DataError:
        return None
    return x, tuple(frozenset([origins[name][0]]) for name in names)
