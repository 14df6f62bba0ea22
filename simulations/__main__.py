"""Command line of the studies: ``python -m simulations fknn``.

``python -m simulations list`` names them, ``python -m simulations data`` the data sets they read.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError, VerticalError
from simulations.data import DATA_SETS, DATA_VARIABLE, Sources, describe
from simulations.preset import Options
from simulations.registry import STUDIES

_OWN = ("file", "label", "positive", "drop", "parties", "missing", "mechanism")
USER_ERROR, OTHERWISE, INTERRUPTED = 2, 1, 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser: one subcommand per study, ``list`` and ``data``."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations",
        description="Reproduce the papers' tables and figures. Finished replications are kept, so "
        "a study that was stopped goes on where it was.",
    )
    commands = parser.add_subparsers(dest="study", required=True, metavar="STUDY")
    commands.add_parser("list", help="name the studies")
    _add_data(commands.add_parser("data", help="name the data sets, and say which are missing"))
    for name, study in STUDIES.items():
        command = commands.add_parser(
            name,
            help=study.summary,
            description=f"{study.description} Every number of its settings is in "
            f"simulations/{name}/preset.toml.",
            epilog="Exit status: 0 done, 1 something came otherwise than expected "
            "(with --check), 2 something the "
            "user can mend, such as absent data, 130 stopped by Ctrl-C.",
        )
        _add_options(command, name)
        for choice, text in study.choices.items():
            command.add_argument(f"--{choice}", nargs="+", metavar="NAME", default=[], help=text)
        if study.own_files:
            _add_own(command)
        if study.keeps:
            command.add_argument(
                "--fresh",
                action="store_true",
                help="compute also what docs/records of the repository has; by default a study "
                "starts from there, and --write adds to it",
            )
        command.add_argument(
            "--write", type=Path, metavar="FILE", help="also write the page of the documentation"
        )
    return parser


def _add_options(command: argparse.ArgumentParser, name: str) -> None:
    command.add_argument(
        "--quick", action="store_true", help="few rates and runs, under a minute; for a first look"
    )
    command.add_argument(
        "--output",
        type=Path,
        default=Path("results") / name,
        metavar="DIR",
        help="where index.md, figures and CSV files go (default: %(default)s)",
    )
    command.add_argument(
        "--seeds",
        type=partial(_integer, 1),
        metavar="N",
        help="replications of every part (default: preset)",
    )
    if any(name in of.studies for of in DATA_SETS.values()):
        _add_data(command)
    command.add_argument(
        "--workers",
        type=partial(_integer, 0),
        metavar="N",
        help="processes that Ray may use (default: all cores); 0 runs without Ray, one by one",
    )
    command.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="change a setting of the preset, as TOML; may be given several times",
    )
    command.add_argument(
        "--check", action="store_true", help="exit with status 1 if something came otherwise"
    )
    command.add_argument(
        "--report",
        action="store_true",
        help="run nothing: make tables and page of the replications that are in the output folder",
    )


def _add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"folder of the data sets (default: ${DATA_VARIABLE}, then data/ of the repository)",
    )


def _add_own(command: argparse.ArgumentParser) -> None:
    own = command.add_argument_group("a table of your own, in place of the study's data sets")
    own.add_argument("--file", metavar="CSV", help="with names in the first line")
    own.add_argument("--label", metavar="NAME", help="the column to predict, of two classes")
    own.add_argument(
        "--positive",
        metavar="VALUE",
        help="the class to predict, against all others (default: of two, the one last by name)",
    )
    own.add_argument(
        "--drop", nargs="+", metavar="NAME", help="columns to leave out, such as an ID"
    )
    own.add_argument(
        "--parties",
        nargs="+",
        metavar="COLUMNS",
        help="columns of each party, names with commas; or how many parties there are (default: 2)",
    )
    own.add_argument(
        "--missing", type=float, metavar="SHARE", help="of cells or blocks to remove (default: 0)"
    )
    own.add_argument(
        "--mechanism",
        help="what is removed at random: cells, or blocks, samples of each party but the first "
        "(default: cells)",
    )


def _own_of(given: dict[str, Any], takes: bool) -> dict[str, Any]:
    """Take out what is said of a user's file; nothing without one."""
    own = {name: given.pop(name) for name in _OWN if takes}
    if own.get("file") is not None:
        return own
    if alone := [name for name, value in own.items() if value is not None]:
        raise ConfigError(f"--{alone[0]} is of a table of your own; name it by --file")
    return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = vars(make_parser().parse_args(arguments))
    name = given.pop("study")
    if name == "list":
        width = max(map(len, STUDIES))
        for known, study in STUDIES.items():
            print(f"{known:<{width}}  {study.summary}")
        return 0
    if name == "data":
        print(describe(Sources.find(given["data"])))
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    study, check = STUDIES[name], given.pop("check")
    chosen = {option: tuple(given.pop(option.replace("-", "_"))) for option in study.choices}
    try:
        own = _own_of(given, study.own_files)
        reached = study.run(Options(chosen=chosen, own=own, **given))
    except VerticalError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(
            f"stopped; finished replications are kept in {given['output']}, and the same command "
            "goes on from there",
            file=sys.stderr,
        )
        return INTERRUPTED
    return OTHERWISE if check and not reached else 0


def _integer(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
