"""``flwr-vertical pipeline``: the run config of a file that lists stages."""

import argparse
import json
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.toml import flat

from .run import run_app

_STAGES = "stages"


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
    parser.add_argument("app", nargs="?", default=".", help="folder of the app")
    parser.add_argument("superlink", nargs="?", help="name of a SuperLink")
    parser.add_argument(
        "--federation-config", action="append", default=[], metavar="KEY=VALUE", help="as of run"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the app with the stages of the file; returns the exit code."""
    read = partial(read_pipeline, Path(options.file))
    return run_app(options.app, options.superlink, read, options.federation_config)


def read_pipeline(path: Path) -> dict[str, Any]:
    """Return the run config of a pipeline; it keeps checkpoints, under the name of its file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has no stages.
    """
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from error
    return {"run-name": path.stem, "checkpoint": True} | with_stages(flat(found), str(path))


def with_stages(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the run config of settings with a list of stages."""
    from strategies import register_all  # all of them take a second to import
    from strategies.pipeline import Pipeline

    register_all()  # stages name strategies, whether the package is installed or not
    stages = found.get(_STAGES)
    if not isinstance(stages, list) or not stages:
        raise ConfigError(
            f"{where} has no stages; each is written as a table [[{_STAGES}]] with a name, a "
            "strategy and its settings, see docs/how-to/pipelines.md"
        )
    if found.get("strategy", Pipeline.name) != Pipeline.name:
        raise ConfigError(
            f"{where} has strategy = {found['strategy']!r} outside its stages; put it into one"
        )
    own = {"strategy": Pipeline.name, f"{Pipeline.name}.{_STAGES}": json.dumps(stages)}
    return {key: value for key, value in found.items() if key != _STAGES} | own
