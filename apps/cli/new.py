"""``flwr-vertical new``: write a small Flower app of one's own."""

import argparse
from pathlib import Path
from typing import Any

from flwr_vertical.registry import available_strategies

from ..new import write_app


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "new",
        help="write a small Flower app of your own, which imports the installed package",
        description="Writes a folder with an app that runs as it is, on demonstration data, and "
        "with a preset, node configs and policies to be filled in. Nothing is overwritten.",
        epilog="example: flwr-vertical new credit --strategy fknn --parties bank,court",
    )
    names = ", ".join(available_strategies())
    parser.add_argument("folder", metavar="FOLDER", help="new folder; its name is the app's")
    parser.add_argument("--strategy", default="fknn", metavar="NAME", help=f"one of {names}")
    parser.add_argument("--parties", default="bank,court", metavar="NAMES", help="with commas")
    return parser


def run(options: argparse.Namespace) -> int:
    """Write the app and print what to do next."""
    print(write_app(Path(options.folder), options.strategy, options.parties.split(",")))
    return 0
