"""``flwr-vertical watch``: show a run while it lasts, and what nodes' privacy ledgers count."""

import argparse
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.storage import output_home
from flwr_vertical.pages.page import format_value
from flwr_vertical.privacy_ledger.summary import LedgerSummary

from ..ledger_usage import RUN_COLUMNS, run_rows
from ..live.page import FORMATS, facts, node_table, sentence
from ..live.server import PATTERN, address_file
from .output import add_json, print_json
from .privacy_ledger import find_ledgers, ledger_tables

_EVERY = 1.0  # seconds between two looks at a run
_LEDGERS_EVERY = 5.0
_PATIENCE = 5.0  # seconds for an answer
# Something else may listen at the port of a run that has ended.
_NO_ANSWER = (OSError, ValueError, HTTPException)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "watch",
        help="show a run while it lasts: nodes, round, rate, time left, loss, bytes",
        description="Shows in a terminal what the page of a run with `live-page=true` shows, until "
        "the run ends; elsewhere once.",
        epilog="example: flwr-vertical watch night",
    )
    parser.add_argument(
        "run",
        nargs="?",
        help="name or folder of a run on this machine, or the address in its log (default: the "
        "newest run that shows itself)",
    )
    parser.add_argument(
        "--ledger",
        action="append",
        default=[],
        metavar="DIR",
        help="a node's 'output' folder on this machine: show its privacy ledger as well, and alone "
        "where no run is found",
    )
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Show a run, ledgers of nodes or both; returns the exit code."""
    address = find_address(options.run)
    ledgers = [path for place in options.ledger for path in find_ledgers(Path(place))]
    if address is None and (options.run or options.json or not ledgers):
        which = f"run {options.run!r}" if options.run else f"run in {_home()}"
        raise ConfigError(
            f"no {which} shows itself: it has not begun, has ended, or was started without "
            "live-page=true; expected the name or the folder of a run that is under way, or the "
            "address in its log"
        )
    if options.json and address is not None:
        print_json(read_status(address))
        return 0
    return _show(address, ledgers)


def find_address(run: str | None) -> str | None:
    """Return the address of a run that answers; None if none does."""
    found = [run] if run and run.startswith("http://") else _addresses(run)
    return next((address for address in found if _answers(address)), None)


def read_status(address: str) -> dict[str, Any]:
    """Ask a run for its state; raises one of `_NO_ANSWER` if it does not answer."""
    # Not by a proxy that the environment may name: the page is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address.rstrip('/')}/status.json", timeout=_PATIENCE) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _home() -> Path:
    return output_home() / "server"


def _addresses(run: str | None) -> Iterator[str]:
    """Yield what the files beside the folders of runs say, the newest file first."""
    folders = [_home() / run, Path(run).expanduser().absolute()] if run else [_home()]
    files = [address_file(folder) for folder in folders if folder.name]
    live = [file for folder in folders for file in folder.glob(PATTERN)]
    files += sorted(live, key=lambda path: -path.stat().st_mtime if path.exists() else 0.0)
    for file in files:
        with suppress(FileNotFoundError):  # its run may end meanwhile
            yield file.read_text("utf-8")


def _answers(address: str) -> bool:
    try:
        read_status(address)
    except _NO_ANSWER:
        return False
    return True


def _show(address: str | None, ledgers: Sequence[Path]) -> int:
    """Draw until the run ends, or once where there is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.print(_drawn(address, ledgers))
        return 0
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            try:
                shown.update(_drawn(address, ledgers), refresh=True)
            except _NO_ANSWER:
                break
            time.sleep(_EVERY)
    console.print("The server's process does not answer: the run has ended.")
    return 0


def _drawn(address: str | None, ledgers: Sequence[Path]) -> RenderableType:
    parts = [] if address is None else status_parts(read_status(address))
    moment = int(time.monotonic() / _LEDGERS_EVERY)
    return Group(*parts, *(ledger_part(_summary(path, moment)) for path in ledgers))


@lru_cache(maxsize=64)
def _summary(path: Path, moment: int) -> LedgerSummary:
    """Read a ledger, once for each moment: its node cannot write meanwhile."""
    return LedgerSummary.of(path)


def status_parts(status: Mapping[str, Any]) -> list[RenderableType]:
    """Return what a terminal shows of a state, as `LiveStatus.read` returns it."""
    doing = status["progress"] or {}
    found = node_table(status).reset_index()
    names, shown = list(map(str, found)), Table()
    for name in names:
        shown.add_column(name, justify="left" if name == "node" else "right")
    for row in found.itertuples(index=False):
        cells = zip(names, row, strict=True)
        shown.add_row(*(Text(FORMATS.get(name, format_value)(cell)) for name, cell in cells))
    bar = Table.grid()  # by itself a bar ends no line
    if doing.get("total"):
        bar.add_row(ProgressBar(doing["total"], doing["done"], width=60))
    what = f"{status['run']}: {status['strategy']}, {status['aggregation']} sums"
    return [
        Text(what, style="bold"),
        Text(sentence(status)),
        bar,
        Text(", ".join(f"{name} {value}" for name, value in facts(status).items())),
        shown,
    ]


def ledger_part(ledger: LedgerSummary) -> RenderableType:
    """Return what a terminal shows of a node's ledger: over all runs, and of the last."""
    shown = ledger_tables(ledger)[0]
    for last in run_rows(ledger)[-1:]:
        told = ", ".join(f"{last[kind]:,} {kind}" for kind in RUN_COLUMNS[5:])
        shown.caption, shown.caption_justify = f"in run {last['name']!r}: {told}", "left"
    return shown
