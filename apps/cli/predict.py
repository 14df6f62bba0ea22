"""``flwr-vertical predict``: new rows of the nodes, with the model of a finished run."""

import argparse
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.toml import read_items

from .run import add_place, add_settings, run_app


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="predict the rows that the nodes now hold, with the model of an earlier run",
        description='A short form of `run` with strategy="predict" and fitted=RUN: each node '
        "takes its part of the model from its own folder of that run, and the rows from the table "
        "that its node config names now. The predictions are in the server's folder of the new "
        "run. Exit codes are those of `run`.",
        epilog="example: flwr-vertical predict first . my-federation -c 'run-name=\"new-rows\"'",
    )
    parser.add_argument("fitted", metavar="RUN", help="run-name of the fit")
    add_place(parser)
    add_settings(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the app with the strategy `predict`; returns the exit code."""
    given = read_items(options.run_config)
    if named := sorted({"strategy", "fitted"} & given.keys()):
        raise ConfigError(
            f"--run-config has {', '.join(named)}, which 'flwr-vertical predict' states itself; "
            "use 'flwr-vertical run' for another one"
        )
    return run_app(options, {"strategy": "predict", "fitted": options.fitted, **given})
