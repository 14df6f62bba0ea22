"""A whole secured federation on this machine, for trying deployments.

Run it in the root of the repository::

    python -m apps.deploy.federation try                 # up, vfem, fknn, down
    python -m apps.deploy.federation up --arbiter        # bank, court, hospital and an arbiter
    python -m apps.deploy.federation run fknn --run-config 'aggregation="ckks"'
    python -m apps.deploy.federation down

Nodes take part in what their configs agree to; what a run needs beyond the safe defaults is put
there by ``up --agree 'strategy="vfem-iterations"'``.
What it does by itself, docs/deployment.md does by hand on several machines.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from flwr_vertical.errors import ConfigError, VerticalError

from .folder import Plan
from .operations import down, run, status, up
from .settings import policies_for

PARTIES = "bank,court,hospital"
HOME = "~/flwr-vertical/deploy"
TRIED = ("vfem", "fknn")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = make_parser().parse_args(arguments)
    home = Path(options.home).expanduser().resolve()
    try:
        if options.command == "up":
            plan = _plan(options)
            up(home, plan, options.port)
            fit = "vfem" if plan.labels or not plan.own_data else "fknn"  # without labels
            print(f"next: python -m apps.deploy.federation run {fit} --home {home}")
            return 0
        if options.command == "run":
            labels = _absolute(options.labels)
            given = options.run_config, options.run_name, labels, options.label_column
            return run(home, options.strategy, *given)
        if options.command == "status":
            return status(home)
        if options.command == "down":
            return down(home, options.remove)
        options.agree += [f'strategy="{strategy}"' for strategy in TRIED]
        up(home, _plan(options), options.port)
        try:
            return max(run(home, strategy) for strategy in TRIED)
        finally:
            down(home)
    except VerticalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser: one subcommand for each thing that can be done."""
    parser = argparse.ArgumentParser(
        prog="python -m apps.deploy.federation",
        description="A whole federation on this machine: a SuperLink with TLS and SuperNode "
        "authentication, a SuperNode for each party, identity keys that everybody pins.",
        epilog="Ports are on 127.0.0.1 alone. docs/deployment.md does the same by hand, on several "
        "machines.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("try", "bring it up, run vfem and fknn, take it down; takes minutes"),
        ("up", "make keys and configurations, start everything, wait until it is connected"),
    ):
        command = commands.add_parser(name, help=text, description=f"{name}: {text}")
        _add_home(command)
        _add_plan(command)
    command = commands.add_parser(
        "run",
        help="run a strategy on it and say where the results are",
        description="Runs `flwr-vertical run` with the parties and the labels of this "
        "federation. Exits with 1 if the run fails.",
    )
    command.add_argument("strategy", help="vfem, fknn or another name that the app knows")
    command.add_argument("--run-name", default="", help="default: strategy, day and time")
    command.add_argument(
        "-c", "--run-config", action="append", default=[], metavar="KEY=VALUE|TOML",
        help="settings of the run, such as 'vfem.covariance=\"block\"'; may be repeated",
    )  # fmt: skip
    _add_labels(command, "for this run (default: that of `up`, if the strategy uses labels)")
    _add_home(command)
    command = commands.add_parser("status", help="show processes and connected SuperNodes")
    _add_home(command)
    command = commands.add_parser("down", help="end everything")
    command.add_argument(
        "--remove", action="store_true", help="remove the folder, too: keys, logs and results"
    )
    _add_home(command)
    return parser


def _add_home(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--home", default=HOME, help=f"folder of keys, logs and results (default: {HOME})"
    )


def _add_plan(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--parties", default="", help=f"names with commas (default: those of --data, or {PARTIES})"
    )
    command.add_argument(
        "--data", action="append", default=[], metavar="NAME=FILE",
        help="a party's own CSV or Parquet file, or its folder of Parquet files, once for each "
        "party; without any, generated data on blood pressure are split over the parties, a third "
        "of the rows removed",
    )  # fmt: skip
    command.add_argument("--id-column", default="", help="of these files (default: the first)")
    command.add_argument(
        "--agree", action="append", default=[], metavar="RUN-CONFIG",
        help="have every node agree to such a run: what it needs beyond the safe defaults goes "
        "into the node configs, as for 'strategy=\"vfem-iterations\"'; may be repeated",
    )  # fmt: skip
    _add_labels(command, "for every strategy that uses labels")
    command.add_argument(
        "--arbiter", action="store_true",
        help="start an arbiter, which trees and aggregation=\"ckks\" need",
    )  # fmt: skip
    command.add_argument("--port", type=int, help="of the SuperLink (default: a free one)")


def _add_labels(command: argparse.ArgumentParser, when: str) -> None:
    command.add_argument(
        "--labels", default="", metavar="FILE", help=f"label file of the server, {when}"
    )
    command.add_argument("--label-column", default="", help="its column, if it has several")


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else ""


def _plan(options: argparse.Namespace) -> Plan:
    files = {}
    for item in options.data:
        name, separator, path = item.partition("=")
        if not separator or not path:
            raise ConfigError(f"--data {item!r}: expected NAME=FILE, such as bank=/srv/bank.csv")
        if name in files:
            raise ConfigError(f"--data names the party {name!r} twice")
        files[name] = str(Path(path).expanduser().resolve())
    names = options.parties or ("" if files else PARTIES)
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if len(set(listed)) < len(listed):
        raise ConfigError(f"--parties {names!r} names a party twice")
    if listed and (strange := sorted(set(files) - set(listed))):
        raise ConfigError(f"--data names parties {strange} that --parties does not")
    parties = {name: files.get(name, "") for name in listed or files}
    labels = _absolute(options.labels)
    plan = Plan(parties, options.arbiter, labels, options.label_column, options.id_column)
    return replace(plan, policies=policies_for(plan, options.agree))


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # so that nothing is left behind
    sys.exit(main())
