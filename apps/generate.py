"""Write what follows from the strategies' fields: run config, presets, tables, a page of the docs.

Run it in the root of the repository after adding a strategy or changing a setting::

    python -m apps.generate            # write
    python -m apps.generate --check    # exit with 1 if something is out of date

Between ``begin generated`` and ``end generated`` it replaces the text of ``pyproject.toml`` and of
the pages under ``docs/how-to``, ``docs/methods`` and ``docs/reference``; ``docs/strategies.md`` and
the presets ``apps/*.toml`` are written whole.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr_vertical import Strategy, load_strategy, make_strategy
from flwr_vertical.errors import ConfigError, VerticalError
from flwr_vertical.policy.requirements import asked_by, lines_of
from flwr_vertical.policy.run_request import RunRequest, needed_keys
from flwr_vertical.settings.toml import flat, toml_value
from strategies import BUILTIN, register_all

from . import commands, pages
from .cli.run_config import checked_config
from .settings import app_config

ROOT = Path(__file__).parents[1]
_PART = re.compile(
    r"(?P<begin>^(?:#|<!--) begin generated: (?P<name>.*?)(?: -->)?$\n)"
    r"(?P<text>.*?)"
    r"(?P<end>^(?:#|<!--) end generated(?: -->)?$)",
    re.M | re.S,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m apps.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if stale")
    options = parser.parse_args(arguments)
    try:
        wanted = generated(ROOT)
        check_presets(wanted)
    except VerticalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in wanted.items() if not _same(path, text)]
    if options.check:
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)}; run `python -m apps.generate`")
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path])
        print(f"written: {path.relative_to(ROOT)}")
    return 0


def generated(root: Path) -> dict[Path, str]:
    """Return the text that every generated file should have."""
    register_all()
    methods = {name: load_strategy(name) for name in sorted(BUILTIN)}
    defaults = app_config()
    found = {
        root / "pyproject.toml": _replaced(
            root / "pyproject.toml", {"entry points": entry_points, "run config": config_tables}
        ),
        root / "docs" / "strategies.md": pages.strategies_page(
            list(methods.values()), places_of(methods, root / "docs")
        ),
    }
    tables: dict[str, Callable[..., str]] = {
        "settings": pages.settings_table,
        "policy": pages.policy_table,
        "node config": pages.node_table,
        "strategy": pages.strategy_section,
        "commands": commands.commands_text,
    }
    for folder in ("how-to", "methods", "reference"):
        for page in sorted((root / "docs" / folder).glob("*.md")):
            if "begin generated" in page.read_text():
                found[page] = _replaced(page, tables)
    for name, method in methods.items():
        if method.demo:
            found[root / "apps" / f"{name}.toml"] = preset(method, defaults)
    return found


def places_of(names: Iterable[str], docs: Path) -> dict[str, str]:
    """Return the page of the documentation that describes each strategy, from `docs`."""
    texts = {path: path.read_text() for path in sorted((docs / "methods").glob("*.md"))}
    found = {}
    for name in names:
        part = f"<!-- begin generated: strategy: {name} -->"
        pages_of_it = [path for path, text in texts.items() if part in text]
        if len(pages_of_it) != 1:
            raise ConfigError(
                f"docs/methods: one page should have the part '{part}', not {len(pages_of_it)}; "
                "put it, and '<!-- end generated -->', into the page of the method"
            )
        found[name] = pages_of_it[0].relative_to(docs).as_posix()
    return found


def entry_points() -> str:
    """Return the entry points of the built-in strategies."""
    return "".join(f'{name} = "{target}"\n' for name, target in sorted(BUILTIN.items()))


def config_tables() -> str:
    """Return the app's run config: what can be set, and its default."""
    lines = ["[tool.flwr.app.config]\n"]
    table = ""
    for key, value in app_config().items():
        head, dot, rest = key.rpartition(".")
        if head != table:
            lines.append(f"\n[tool.flwr.app.config.{head}]\n")
            table = head
        lines.append(f"{rest if dot else key} = {toml_value(value)}\n")
    return "".join(lines)


def preset(method: type[Strategy], defaults: Mapping[str, Any]) -> str:
    """Return a preset: the demonstration of a strategy, and all of its settings."""
    own = method.config_defaults(f"{method.name}.")
    config = {"strategy": method.name, **method.demo}
    whole = {**defaults, **own, **config}
    strategy = make_strategy(method.name, whole)
    run = f"flwr-vertical run . --run-config apps/{method.name}.toml"
    if strategy.needs_arbiter:
        run += " --federation-config 'num-supernodes=3'"
    source = "inside scikit-learn"
    if config.get("demo.dataset") == "blood-pressure":
        source = "on blood pressure, which are generated"
    lines = [
        f"# Run config of {method.__name__}, made by `python -m apps.generate`:\n",
        f"#     {run}\n",
        f"# It runs the demonstration data {source}. For your own data copy what you need\n# of it",
    ]
    named = 'name "labels" (a file of the server) or "label-holder"'
    lines.append(f", and {named}.\n" if "labels" in config else ".\n")
    needed = _needed(strategy, whole)
    agree = f"Each node has to agree: {needed}" if needed else "Nodes take part without any key."
    lines.append(f"# {agree}\n")
    tables: dict[str, dict[str, object]] = {"": {}, "demo": {}, method.name: {}}
    for key, value in {**own, **config}.items():
        head, _, rest = key.rpartition(".")
        tables[head][rest] = value
    for head, values in tables.items():
        if head and values:
            lines.append(f"\n[{head}]\n")
        lines += [f"{key} = {toml_value(value)}\n" for key, value in values.items()]
    return "".join(lines)


def _needed(strategy: Strategy, config: Mapping[str, Any]) -> str:
    """Return the keys that nodes need for a run, ready to paste."""
    asked = asked_by(strategy)
    request = RunRequest.of(config, "", exchanges=asked.exchanges, epsilon=asked.epsilon)
    return " ".join(lines_of(needed_keys(request)))


def check_presets(wanted: Mapping[Path, str]) -> None:
    """Raise `ConfigError` unless all presets, also those written by hand, can be used."""
    defaults = app_config()
    presets = {path: path.read_text() for path in sorted((ROOT / "apps").glob("*.toml"))}
    presets |= {path: text for path, text in wanted.items() if path.parent.name == "apps"}
    for path, text in presets.items():
        try:
            checked_config(defaults, flat(tomllib.loads(text)), here=False)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{path.relative_to(ROOT)}: {error}") from error


def _replaced(path: Path, parts: Mapping[str, Callable[..., str]]) -> str:
    """Return a file's text with its generated parts made anew."""

    def made(match: re.Match[str]) -> str:
        name, _, arguments = match["name"].partition(": ")
        if name not in parts:
            raise ConfigError(f"{path.name}: there is no generated part {name!r}: {list(parts)}")
        return match["begin"] + parts[name](*arguments.split()) + match["end"]

    return _PART.sub(made, path.read_text())


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
