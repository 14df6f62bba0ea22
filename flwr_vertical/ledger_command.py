"""``flwr-vertical privacy-ledger``: show what has left a node, run by run."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flwr_vertical.policy.summary import LedgerSummary, find_ledgers

_WIDTH = 160
_STATE = {
    "rows": "rows that the ledger knows",
    "rows_told_of": "rows that sums were opened of",
    "sets": "sets of rows that opened sums can be combined to",
    "smallest_set": "rows of the smallest of them",
    "vectors": "most label vectors with one of them",
    "prediction_bits": "most bits of one row in predictions",
    "other_bits": "most bits of one row told otherwise",
    "epsilon": "epsilon spent",
    "delta": "delta spent",
    "releases": "releases with privacy noise",
}


def show_ledgers(place: Path, as_json: bool, console: Console | None = None) -> None:
    """Print the ledgers of a folder.

    Parameters
    ----------
    place : Path
        The folder that ``output`` of a node config names, or a ledger's file.
    as_json : bool
        Whether to print JSON, one object for each ledger, in a list.
    console : rich.console.Console, optional
        Where to (default: standard output).
    """
    found = [LedgerSummary.of(path) for path in find_ledgers(place)]
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
        return
    shown = console or Console(highlight=False)
    if not shown.is_terminal:  # a pipe has no width
        shown = Console(file=shown.file, width=_WIDTH, highlight=False)
    for one in found:
        for table in _tables(one):
            shown.print(table)
            shown.print()


def _tables(one: LedgerSummary) -> list[Table]:
    state = _table(f"Privacy ledger of party {one.party!r}", ["over all runs", ""], right={1})
    for key, words in _STATE.items():
        state.add_row(words, f"{one.state[key]:,.10g}")
    runs = _table("Runs", ["run", "name", "strategy", "began (UTC)", "greetings"], right={0, 4})
    names = {}
    for run in one.runs:
        names[run["id"]] = run["name"]
        runs.add_row(
            str(run["id"]), run["name"], run["strategy"], _time(run["began"]), str(run["greetings"])
        )
    titles = ["run", "at (UTC)", "to", "what", "rows", "smallest set", "vectors", "cost"]
    entries = _table("What was told", titles, right={4, 5, 6})
    for entry in one.entries:
        entries.add_row(
            names[entry["run"]],
            _time(entry["at"]),
            entry["receiver"],
            entry["what"],
            _count(entry["n_rows"]),
            _count(entry["smallest"]),
            _count(entry["n_vectors"]),
            _cost(entry),
        )
    seen = {entry["colluding"]: None for entry in one.entries if entry["colluding"]}
    if seen:
        entries.caption = f"Could see more by colluding: {'; '.join(seen)}."
        entries.caption_justify = "left"
    return [state, runs, entries]


def _table(title: str, columns: list[str], right: set[int]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number in right else "left", overflow="fold")
    return table


def _cost(entry: dict[str, Any]) -> str:
    parts = []
    if entry["bits"]:
        parts.append(f"{entry['bits']:g} bits of a row")
    if entry["epsilon"]:
        parts.append(f"epsilon {entry['epsilon']:g}")
    if entry["delta"]:
        parts.append(f"delta {entry['delta']:g}")
    return ", ".join(parts)


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
