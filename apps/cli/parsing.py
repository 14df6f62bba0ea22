"""The command line's parser: which word is wrong and may be meant; scripts that complete words."""

import argparse
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from flwr_vertical.errors import ConfigError
from flwr_vertical.registry import available_strategies
from flwr_vertical.settings import nearest
from flwr_vertical.version import __version__

_CHOICE = re.compile(r"invalid choice: '?(?P<given>[^']*?)'? \(choose from (?P<valid>.*)\)")
_UNKNOWN = "unrecognized arguments: "
SHELLS = ("bash", "zsh", "tcsh")
_FUNCTION = "_flwr_vertical_strategies"


class SuggestingParser(argparse.ArgumentParser):
    """Ends with one line and the exit code 2 where an argument is wrong."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, the nearest valid word, and where to look; exit with 2."""
        if found := _CHOICE.search(message):
            message += nearest(found["given"], re.findall(r"[\w-]+", found["valid"]))
        elif message.startswith(_UNKNOWN):
            given = message.removeprefix(_UNKNOWN).split()[0].partition("=")[0]
            message += nearest(given, set(_options(self)))
        self.exit(2, f"error: {message}; see '{self.prog} --help'\n")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of its subcommands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


def version_text() -> str:
    """Return the versions that matter when somebody asks for help."""
    try:
        flwr = version("flwr")
    except PackageNotFoundError:  # pragma: no cover (a vendored copy of Flower)
        flwr = "of unknown version"
    python = platform.python_version()
    return f"flwr-vertical {__version__} (flwr {flwr}, Python {python}, {sys.platform})"


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return a script of all words, by shtab: a shell need not start Python, which is slow."""
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError("completion needs the package shtab: pip install shtab") from error
    names = " ".join(available_strategies())
    strategies = {"bash": _FUNCTION, "zsh": f"({names})", "tcsh": f"({names})"}
    for command, action in _arguments(parser):
        if (command, action.dest) in {("strategies", "name"), ("new", "strategy")}:
            action.complete = strategies  # type: ignore[attr-defined]
        elif action.dest in {"app", "folder", "place"}:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in {"files", "path", "file", "run_config", "node_config"}:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    preamble: Any = {"bash": f'{_FUNCTION}() {{ compgen -W "{names}" -- "$1"; }}\n'}
    script: str = shtab.complete(parser, shell, preamble=preamble)
    return script


def _arguments(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.Action]]:
    """Return the arguments of all subcommands, each with its subcommand."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                found += [(name, each) for each in command._actions]
    return found


def add_nodes_option(command: argparse.ArgumentParser) -> None:
    """Add the option by which a simulation's nodes have node configs and own tables."""
    command.add_argument(
        "--nodes",
        metavar="FOLDER",
        help="of a simulation: node configs, NAME.toml or NAME/node.toml, which name tables of "
        "your own; relative paths in them are taken from the current folder",
    )
