"""Command lines as Markdown, made of their parsers."""

import argparse
import textwrap
from collections.abc import Callable, Iterator

from .cli import main
from .deploy import federation

_WIDTH = 100
PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "flwr-vertical": main.make_parser,
    "apps.deploy.federation": federation.make_parser,
}
"""By name of a program or module: what makes its parser."""


def commands_text(name: str) -> str:
    """Return a section for each subcommand of a program, for a page of the documentation."""
    lines: list[str] = []
    for title, parser in subcommands(PARSERS[name]()):
        lines += [f"### {title}", "", *textwrap.wrap(_sentence(parser), _WIDTH), ""]
        usage = parser.format_usage().removeprefix("usage: ")
        lines += ["```text", *textwrap.wrap(" ".join(usage.split()), _WIDTH - 2), "```", ""]
        rows = list(_options(parser))
        lines += rows + [""] * bool(rows)
        if parser.epilog:
            lines += [*textwrap.wrap(_escaped(parser.epilog), _WIDTH), ""]
    return "\n".join(lines)


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each subcommand's name and parser; a parser without any yields itself."""
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not found:
        yield parser.prog, parser
    for action in found:
        helps = {choice.dest: choice.help for choice in action._choices_actions}
        for name, command in action.choices.items():
            command.description = command.description or helps.get(name) or ""
            yield command.prog, command


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help is argparse.SUPPRESS:
            continue
        shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        if action.option_strings and action.nargs != 0:
            shown += f" {action.metavar or action.dest.upper()}"
        text = (action.help or "") % {"default": action.default, "prog": parser.prog}
        if action.choices:
            text += f" (one of {', '.join(map(str, action.choices))})"
        yield from textwrap.wrap(
            f"* `{shown}`" + (f": {_escaped(text)}" if text else ""),
            _WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _sentence(parser: argparse.ArgumentParser) -> str:
    text = _escaped(parser.description or "")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _escaped(text: str) -> str:
    """Keep Markdown from reading ``*`` or ``<`` in plain text."""
    return text.replace("<", "\\<").replace("*", "\\*")
