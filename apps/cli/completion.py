"""``flwr-vertical completion``: a script with which a shell completes commands and options.

The script holds all words, so that a shell need not start Python, which takes a second or more.
"""

import argparse
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.registry import available_strategies

SHELLS = ("bash", "zsh", "tcsh")
_FUNCTION = "_flwr_vertical_strategies"


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script, made by shtab."""
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
