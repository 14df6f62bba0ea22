"""``flwr-vertical report``: write the report of a finished run again."""

import argparse
from pathlib import Path
from typing import Any

from .output import add_json, print_json
from .runs import NAMED, find_run, load_run


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write the report of a finished run again, and say where it is",
        description="Makes the page of what the server's folder of the run holds, with this "
        "version of the library, and prints its path. Reports of parties stay with them.",
        epilog="example: flwr-vertical report first --output first.html",
    )
    parser.add_argument("name", metavar="RUN", help=NAMED)
    parser.add_argument(
        "--output", metavar="FOLDER|HTML", help="where to write it (default: the run's folder)"
    )
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Write the report and print its path."""
    result = load_run(options.name)
    path = result.report(Path(options.output) if options.output else find_run(options.name))
    if options.json:
        print_json({"run": result.name, "strategy": result.strategy, "report": path})
    else:
        print(path)
    return 0
