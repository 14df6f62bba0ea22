"""``flwr-vertical``: run the app and know how it ended; tools for nodes and their owners.

Exit codes of all commands: 0 if it is done; 1 if a run or a check fails, or a node would refuse; 2
if nothing was begun, since an option, a setting or a file cannot be used.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from flwr_vertical.errors import ConfigError, DataError, VerticalError
from flwr_vertical.tables.findings import DataWarning

from . import (
    align,
    check,
    compare,
    completion,
    cross_validate,
    keygen,
    new,
    pipeline,
    policy,
    predict,
    privacy_ledger,
    report,
    run,
    stop,
    strategies,
    supernode,
    watch,
)
from .parsing import SuggestingParser, version_text


class _Command(Protocol):
    """What the module of a subcommand has."""

    def add_parser(self, commands: Any) -> argparse.ArgumentParser: ...

    def run(self, options: argparse.Namespace) -> int: ...


COMMANDS: tuple[_Command, ...] = (
    run,
    predict,
    pipeline,
    cross_validate,
    compare,
    report,
    stop,
    strategies,
    keygen,
    align,
    check,
    policy,
    privacy_ledger,
    supernode,
    watch,
    new,
    completion,
)
"""In the order of ``--help``."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser: one subcommand for each thing that can be done."""
    parser = SuggestingParser(
        prog="flwr-vertical", description="Vertical federated learning on incomplete data."
    )
    parser.add_argument("--version", action="version", version=version_text())
    parser.set_defaults(parser=parser)  # for the command that completes words of all
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands).set_defaults(carry_out=command.run)
    return parser


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show what is odd about a table once and in one line, without a place in the code."""
    show, shown = warnings.showwarning, set[str]()

    def plainly(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, DataWarning):
            show(message, category, filename, lineno, file, line)
        elif str(message) not in shown:
            shown.add(str(message))
            print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = plainly
    try:
        yield
    finally:
        warnings.showwarning = show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = make_parser().parse_args(arguments)
    try:
        with _plain_warnings():
            code: int = options.carry_out(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, as `head` does, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return 0
    except VerticalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | DataError) else 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print("interrupted", *stopped.args, sep="", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
