"""``flwr-vertical strategies``: list the strategies, or show the settings of one."""

import argparse
import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.registry import available_strategies, load_strategy, setting_names
from flwr_vertical.settings import Setting, settings_of
from flwr_vertical.strategy import Strategy

from .output import add_json, print_json
from .rounds import UNDECLARED, protocols_of, round_rows

_WIDTH = 96


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of ``flwr-vertical``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "strategies", help="list the strategies that can be used by name, or show one's settings"
    )
    names = ", ".join(available_strategies())
    parser.add_argument("name", nargs="?", help=f"one of {names}, or module:Class")
    add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print what there is to know about one strategy, or a line on each."""
    if options.json:
        print_json(_facts(options.name) if options.name else list(_known()))
    else:
        print(describe_strategy(options.name) if options.name else list_strategies())
    return 0


def _known() -> Iterator[dict[str, Any]]:
    """Yield each strategy with what it does, or why it cannot be used here."""
    for name in available_strategies():
        try:
            yield {"name": name, "summary": summary(load_strategy(name)), "problem": None}
        except ConfigError as error:
            yield {"name": name, "summary": None, "problem": str(error)}


def _facts(name: str) -> dict[str, Any]:
    strategy = load_strategy(name)
    return {
        "name": strategy.name,
        "summary": summary(strategy),
        "settings": [
            {"key": f"{strategy.name}.{item.key}", "default": default_text(item),
             "values": kind_text(item), "meaning": item.doc}
            for item in ([] if strategy.by_hand else settings_of(strategy))
        ],
        "labels": labels_text(strategy),
        "packages": strategy.requires,
        "discloses": dict(disclosures(strategy)),
        "rounds": {
            heading: None if protocol is None else list(map(vars, round_rows(protocol)))
            for heading, protocol in protocols_of(strategy)
        },
    }  # fmt: skip


def list_strategies() -> str:
    """Return a line for each strategy: what it does, or why it cannot be used here."""
    return "\n".join(
        f"{one['name']:<16} {one['summary'] or 'CANNOT BE USED: ' + one['problem']}"
        for one in _known()
    )


def summary(strategy: type[Strategy]) -> str:
    """Return the first line of a strategy's documentation."""
    return next(iter((strategy.__doc__ or "").strip().splitlines()), "")


def describe_strategy(name: str) -> str:
    """Return what there is to know about a strategy before running it, as text."""
    strategy = load_strategy(name)
    lines = [f"{strategy.name}: {summary(strategy)}", ""]
    if strategy.by_hand:
        keys = [f"{strategy.name}.{key.replace('_', '-')}" for key in setting_names(strategy)]
        lines.append(f"settings: {', '.join(keys) or 'none'}")
    elif declared := settings_of(strategy):
        lines.append("settings (in a run config; in Python with underscores):")
        for item in declared:
            lines.append(f"  {strategy.name}.{item.key} = {default_text(item)}   {kind_text(item)}")
            lines += textwrap.wrap(
                item.doc.replace("``", ""), _WIDTH, initial_indent=" " * 6,
                subsequent_indent=" " * 6,
            )  # fmt: skip
    else:
        lines.append("settings: none")
    lines.append("")
    lines.append(f"labels:    {labels_text(strategy)}")
    lines.append(f"packages:  {', '.join(strategy.requires) or 'none beside those of the core'}")
    for heading, rows in disclosures(strategy):
        lines.append(f"{heading}:")
        for who, what in rows:
            lines += textwrap.wrap(
                f"{who}: {what}", _WIDTH, initial_indent="  ", subsequent_indent=" " * 6
            )
    for heading, protocol in protocols_of(strategy):
        lines.append(f"{heading}:")
        if protocol is None:
            lines += _indented(UNDECLARED)
        for row in round_rows(protocol) if protocol is not None else ():
            when = f" [{row.when.replace('`', '')}]" if row.when else ""
            up = row.up or "nothing"
            lines += _indented(f"{row.step}: {row.asked}; up: {up}; tells: {row.tells}{when}")
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent=" " * 6)


def disclosures(strategy: type[Strategy]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Return who learns what, under a heading each: of a run, and of predictions of new rows."""
    found = [("who learns what, beside alignment and sums", strategy.disclosure)]
    of_new_rows = strategy.predictions
    if of_new_rows is not None and of_new_rows.disclosure is not strategy.disclosure:
        found.append(("who learns what where 'predict' uses the model", of_new_rows.disclosure))
    return found


def labels_text(strategy: type[Strategy]) -> str:
    """Say whether a strategy needs labels."""
    if strategy.needs_labels:
        return "needed"
    return "used where there are any" if strategy.uses_labels else "not used"


def kind_text(item: Setting) -> str:
    """Return the valid values of a setting, in short."""
    return item.type_text + (f", {item.bounds_text}" if item.bounds_text else "")


def default_text(item: Setting) -> str:
    """Return the default of a setting in a run config."""
    default: Any = item.flower_default
    if default is dataclasses.MISSING:
        return "(must be given)"
    default = item.to_plain(default)
    return f'"{default}"' if isinstance(default, str) else str(default).lower()
