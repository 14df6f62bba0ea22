"""Settings and strategies as Markdown."""

import inspect
import textwrap
from collections.abc import Mapping, Sequence

from flwr_vertical import RunSettings, Strategy, load_strategy
from flwr_vertical.node.config import NODE_KEYS
from flwr_vertical.policy.record import PREFIX, Policy, text_of
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.settings import Setting, settings_of

from .cli.rounds import UNDECLARED, protocols_of, round_rows
from .cli.strategies import default_text, disclosures, kind_text, labels_text, summary
from .settings import AppSettings, DemoSettings

_WIDTH = 100
_HEAD = """\
# Strategies

Made by `python -m apps.generate` from the classes, which are imported from
`flwr_vertical.strategies`. A setting is given to the constructor with underscores,
`FKNN(n_neighbors=7)`, and in a run config with hyphens under the strategy's name,
`fknn.n-neighbors=7`, where None is `"none"` or `""`. The page of the method lists the settings and
says who learns what; so does `flwr-vertical strategies NAME`, for any installed strategy.
[add-a-strategy.md](add-a-strategy.md) says how to add one.

| name | class | what it does |
|---|---|---|
"""


def settings_table(name: str, *fields: str) -> str:
    """Return a table of settings, for a page of the documentation."""
    if name == "run":
        rows = ["| key | default | meaning |", "|---|---|---|"]
        for record, prefix in ((AppSettings, ""), (RunSettings, ""), (DemoSettings, "demo.")):
            for item in (item for item in settings_of(record) if item.on_flower):
                meaning = _markdown(item.doc) + _among(item)
                rows.append(f"| `{prefix}{item.key}` | `{default_text(item)}` | {meaning} |")
    else:
        rows = ["| setting | values | meaning |", "|---|---|---|"]
        declared = {item.name: item for item in settings_of(load_strategy(name))}
        for field in fields or declared:
            item = declared[field]
            rows.append(f"| `{field}` | {_values(item)} | {_markdown(item.doc)} |")
    return "\n".join(rows) + "\n"


def policy_table() -> str:
    """Return a table of what a node's policy says, for a page of the documentation."""
    rows = ["| key of the node config | default | meaning |", "|---|---|---|"]
    for item in settings_of(Policy):
        shown = "" if item.default is None else f"`{text_of(item.default)}`"
        rows.append(f"| `{PREFIX}{item.key}` | {shown} | {_markdown(item.doc)} |")
    return "\n".join(rows) + "\n"


def node_table() -> str:
    """Return a table of the keys of the node config."""
    rows = ["| key | meaning |", "|---|---|"]
    rows += [f"| `{key.name}` | {_markdown(key.doc)} |" for key in NODE_KEYS]
    return "\n".join(rows) + "\n"


def strategies_page(methods: Sequence[type[Strategy]], places: Mapping[str, str]) -> str:
    """Return the page of the documentation that lists the strategies."""
    rows = []
    for method in methods:
        link = f"[`{method.name}`]({places[method.name]}#{method.name})"
        rows.append(f"| {link} | `{method.__name__}` | {_markdown(summary(method))} |\n")
    return _HEAD + "".join(rows)


def strategy_section(name: str) -> str:
    """Return what there is to know about a strategy before running it."""
    method = load_strategy(name)
    lines = [f"## {method.name}", "", f"`flwr_vertical.strategies.{method.__name__}`", ""]
    lines += [*_prose(method), "", "Settings:", ""]
    for item in settings_of(method):
        kind = kind_text(item)
        if item.limits.choices is not None:
            kind = kind.strip("{}").replace('"', "`")
        text = f"* `{item.key}` = `{default_text(item)}` ({kind}): {_markdown(item.doc)}"
        if item.default != item.flower_default:
            text += f" From Python the default is `{item.default}`."
        lines += _wrapped(text)
    packages = ", ".join(f"`{name}`" for name in method.requires) or "none beside the core's"
    lines += ["", f"Labels: {labels_text(method)}. Packages: {packages}.", ""]
    for heading, rows in disclosures(method):
        lines += [f"{heading.capitalize()}:", ""]
        for who, what in rows:
            lines += _wrapped(f"* *{who}*: {_markdown(what)}")
        lines.append("")
    for heading, protocol in protocols_of(method):
        lines += [f"{heading.capitalize()}:", "", *_rounds_table(protocol), ""]
    return "\n".join(lines)


def _rounds_table(protocol: Protocol | None) -> list[str]:
    """Return the table of the rounds that a protocol declares."""
    if protocol is None:
        return _wrapped(UNDECLARED.capitalize() + ".")
    lines = ["| step | asked | what comes up | tells | when |", "|---|---|---|---|---|"]
    for row in round_rows(protocol):
        cells = (f"`{row.step}`", row.asked, row.up or "nothing", row.tells, row.when or "once")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _wrapped(item: str) -> list[str]:
    return textwrap.wrap(
        item, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _prose(method: type[Strategy]) -> list[str]:
    """Return a docstring's paragraphs before its parameters."""
    text = inspect.cleandoc(method.__doc__ or "")
    for section in ("Parameters", "Notes", "Examples", "References"):
        text = text.partition(f"\n{section}\n---")[0]
    return _markdown(text).strip().splitlines()


def _values(item: Setting) -> str:
    """Return the values of a setting as a Python programmer writes them."""
    if item.limits.choices is None and item.values.scalars != (bool,):
        default = f'"{item.default}"' if isinstance(item.default, str) else item.default
        return f"`{default}` (default), {item.values.text}{_limits(item)}"
    choices = list(item.limits.choices or (True, False))
    if item.values.none:
        choices = [*(choice for choice in choices if choice != "none"), None]
    default = None if item.values.none and item.default == "none" else item.default
    ordered = [default, *(choice for choice in choices if choice != default)]
    return ", ".join(f"`{c!r}`" + " (default)" * (c is default) for c in ordered).replace("'", '"')


def _among(item: Setting) -> str:
    if item.limits.choices is None:
        return _limits(item)
    return " One of " + ", ".join(f"`{choice}`" for choice in item.limits.choices) + "."


def _limits(item: Setting) -> str:
    return f" ({item.bounds_text})" if item.bounds_text else ""


def _markdown(text: str) -> str:
    return text.replace("``", "`")
