"""``flwr-vertical pipeline``: several strategies one after the other, as a file lists them."""

import argparse
from pathlib import Path
from typing import Any

from .run import add_place, run_app
from .stages import read_pipeline


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pipeline",
        help="run several strategies one after the other, over one alignment, as a file lists them",
        description="Runs the stages of a TOML file as one run, with one report, and keeps "
        "checkpoints: if it breaks off in any stage, the same command goes on there. Settings of "
        "all stages are checked before anything is started; exits with 2 if one is wrong.",
        epilog="example: flwr-vertical pipeline apps/pipelines/blood-pressure.toml",
    )
    parser.add_argument("file", metavar="TOML", help="its stages, and settings of the run")
    add_place(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the app with the stages of the file; returns the exit code."""
    return run_app(options, read_pipeline(Path(options.file)))
