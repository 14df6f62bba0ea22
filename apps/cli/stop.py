"""``flwr-vertical stop``: end the local SuperLink, which the first simulation leaves running."""

import argparse
from typing import Any

from .local_superlink import stop_local_superlink


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stop",
        help="end the local SuperLink, which the first simulation leaves running",
        description="Ends the SuperLink that Flower starts on this machine for simulations, and "
        "the runs that are under way on it. SuperLinks of real nodes are not touched.",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """End it and print what was done."""
    print(stop_local_superlink())
    return 0
