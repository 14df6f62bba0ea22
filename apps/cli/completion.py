"""``flwr-vertical completion``: a script that completes words of commands in a shell."""

import argparse
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.registry import available_strategies

_SHELLS = ("bash", "zsh", "tcsh")
_FUNCTION = "_flwr_vertical_strategies"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        epilog="example: flwr-vertical completion bash > "
        "~/.local/share/bash-completion/completions/flwr-vertical",
    )
    parser.add_argument("shell", choices=_SHELLS)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the script, made of all commands."""
    print(_script(options.parser, options.shell))
    return 0


def _script(parser: argparse.ArgumentParser, shell: str) -> str:
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
