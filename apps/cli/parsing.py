"""The command line's parser, which says which word is wrong and which may be meant."""

import argparse
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from flwr_vertical.settings import nearest
from flwr_vertical.version import __version__

_CHOICE = re.compile(r"invalid choice: '?(?P<given>[^']*?)'? \(choose from (?P<valid>.*)\)")
_UNKNOWN = "unrecognized arguments: "


class SuggestingParser(argparse.ArgumentParser):
    """Ends with one line and the exit code 2 where an argument is wrong."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but say of a word too many what this command takes."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown and not unknown[0].startswith("-"):
            taken = " ".join(str(a.metavar or a.dest) for a in self._get_positional_actions())
            takes = f"'{self.prog}' takes {taken or 'options alone'}"
            self.error(f"'{unknown[0]}' is an argument too many: {takes}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, the nearest valid word, and where to look; exit with 2."""
        if found := _CHOICE.search(message):
            message += nearest(found["given"], re.findall(r"[\w-]+", found["valid"]))
        elif message.startswith(_UNKNOWN):
            given = message.removeprefix(_UNKNOWN).split()[0].partition("=")[0]
            known = set(_options(self))
            message += " (of another command)" if given in known else nearest(given, known)
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
