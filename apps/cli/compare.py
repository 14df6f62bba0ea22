"""``flwr-vertical compare``: finished runs side by side."""

import argparse
from collections.abc import Sequence
from typing import Any

import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.pages.page import format_value, human_bytes, human_seconds
from flwr_vertical.reports.glossary import most_telling_first
from flwr_vertical.result import Result
from flwr_vertical.server.run_record import describe

from .output import add_json, print_json
from .runs import NAMED, load_run


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="show finished runs side by side: settings that differ, metrics, cost",
        description="Reads the server's results of two or more runs. Nothing is computed anew: "
        "metrics are comparable if they are of the same samples.",
        epilog="example: flwr-vertical compare first second",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"two or more, each {NAMED}")
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the table, or the same as JSON."""
    if len(options.runs) < 2:
        raise ConfigError("compare needs two runs or more; 'flwr-vertical report' shows one")
    results = [load_run(name) for name in options.runs]
    if options.json:
        print_json({"differ": differing(results), "runs": [_plain(one) for one in results]})
    else:
        print(side_by_side(results).to_string())
    return 0


def differing(results: Sequence[Result]) -> list[str]:
    """Return the settings in which the runs are not all alike, the strategy first."""
    settings = [{"strategy": one.strategy, **one.settings} for one in results]
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({describe(own.get(name)) for own in settings}) > 1]


def side_by_side(results: Sequence[Result]) -> pd.DataFrame:
    """Return a column for each run: settings that differ, metrics, what it cost."""
    metrics = dict.fromkeys(n for one in results for n in most_telling_first(one.metrics))
    columns = {}
    for number, one in enumerate(results):
        settings = {"strategy": one.strategy, **one.settings}
        ledger = one.ledger
        rows = {name: settings.get(name, "–") for name in differing(results)}
        rows |= {name: one.metrics.get(name, "–") for name in metrics}
        rows |= {
            "rounds": ledger.rounds,
            "traffic": human_bytes(ledger.bytes_up + ledger.bytes_down),
            "time of the rounds": human_seconds(ledger.seconds),
            "finished": one.finished,
        }
        columns[number] = {
            name: value if isinstance(value, str) else format_value(value)
            for name, value in rows.items()
        }
    return pd.DataFrame(columns).set_axis([one.name for one in results], axis=1)


def _plain(result: Result) -> dict[str, Any]:
    ledger = result.ledger
    return {
        "run": result.name,
        "folder": result.where,
        "strategy": result.strategy,
        "settings": result.settings,
        "metrics": result.metrics,
        "rounds": ledger.rounds,
        "bytes": ledger.bytes_up + ledger.bytes_down,
        "seconds": ledger.seconds,
        "finished": result.finished,
    }
