"""``flwr-vertical privacy-ledger``: show what has left a node, run by run; repair its clock."""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy_ledger.database import SUFFIX, check_whole, transaction
from flwr_vertical.privacy_ledger.entries import Book
from flwr_vertical.privacy_ledger.summary import LedgerSummary

from ..ledger_usage import ENTRY_COLUMNS, RUN_COLUMNS, colluding, entry_rows, run_rows, standing
from .output import add_json, print_json

_WIDTH = 160
_PATIENCE = 30.0


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "privacy-ledger", help="show what has left a node: runs, sets of rows, bits, epsilon"
    )
    parser.add_argument("place", metavar="DIR", help="the node's 'output' folder, or a ledger")
    add_json(parser)
    parser.add_argument(
        "--repair-clock",
        action="store_true",
        help="go on although the last entry is later than this machine's clock, which was ahead "
        "then and is right now; the repair is an entry, and every limit still counts what was told",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Show the ledgers, or repair their clocks."""
    if options.repair_clock:
        repair_clocks(Path(options.place))
    else:
        show_ledgers(Path(options.place), options.json)
    return 0


def show_ledgers(place: Path, as_json: bool, console: Console | None = None) -> None:
    """Print the ledgers of a folder."""
    found = [LedgerSummary.of(path) for path in find_ledgers(place)]
    if as_json:
        print_json([asdict(one) for one in found])
        return
    shown = console or Console(highlight=False)
    if not shown.is_terminal:  # a pipe has no width
        shown = Console(file=shown.file, width=_WIDTH, highlight=False)
    for one in found:
        for table in ledger_tables(one):
            shown.print(table)
            shown.print()


def repair_clocks(place: Path, clock: Callable[[], float] = time.time) -> None:
    """Let ledgers go on whose last entry was made when the machine's clock was ahead.

    Each repair is an entry of its ledger, and nothing that was told is forgotten.
    """
    for path in find_ledgers(place):
        who = f"ledger {path.name!r}"
        with transaction(path, who, _PATIENCE) as connection:
            check_whole(connection, path, who)
            done = Book(connection, path, who).repair_clock(clock())
        print(f"{path}: {done or 'nothing to repair: no entry is later than the clock'}")


def ledger_tables(one: LedgerSummary) -> list[Table]:
    """Return a ledger as tables: where the node stands, its runs, what was told."""
    state = _table(f"Privacy ledger of party {one.party!r}", ["over all runs", ""], right={1})
    for line in standing(one):
        state.add_row(line.what, line.so_far)
    runs = _filled("Runs", run_rows(one), RUN_COLUMNS, right={0, *range(4, 11)})
    entries = _filled("What was told", entry_rows(one), ENTRY_COLUMNS, right={4, 5, 6})
    if more := colluding(one.entries):
        entries.caption = more
        entries.caption_justify = "left"
    return [state, runs, entries]


def _filled(title: str, rows: list[dict[str, Any]], names: list[str], right: set[int]) -> Table:
    table = _table(title, names, right)
    for row in rows:
        table.add_row(*(str(row[name]) for name in names))
    return table


def _table(title: str, columns: list[str], right: set[int]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number in right else "left", overflow="fold")
    return table


def find_ledgers(place: Path) -> list[Path]:
    """Return the ledgers in a folder, or the one that is named."""
    found = [place] if place.is_file() else sorted(place.glob(f"*{SUFFIX}"))
    if not found:
        raise ConfigError(
            f"there is no privacy ledger in {place}; expected the folder that 'output' of a node "
            f"config names, with a file <party>{SUFFIX}: a node makes it in its first run"
        )
    return found
