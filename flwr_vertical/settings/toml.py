"""Run configs as Flower reads and takes them: flat keys with dots, texts, numbers, truth values."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.secrets import looks_secret, names_secret

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


def read_items(items: Sequence[str]) -> dict[str, Any]:
    """Read options of ``--run-config``; the last value of a key counts."""
    found: dict[str, Any] = {}
    for item in items:
        found |= read_item(item.strip())
    return found


def read_item(item: str) -> dict[str, Any]:
    """Read one option of ``--run-config``; see `read_items`."""
    try:
        if item.endswith(".toml"):
            return flat(tomllib.loads(Path(item).expanduser().read_text()))
        pairs = _PAIR.findall(item)
        rest = _PAIR.sub("", item).split()
        if not pairs or rest:  # Flower leaves out without a word what is no pair
            raise ValueError(f"{rest[0]!r} is no key=value" if rest else "it is empty")
        return flat(tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs)))
    except (OSError, ValueError) as error:
        if looks_secret(item) or names_secret(
            item.partition("=")[0]
        ):  # of a run config it is refused anyway, and never shown
            raise ConfigError(
                "cannot read a setting with what looks like the address of a database or a "
                "password (it is not shown here); texts have quotes, and a run config has no such"
            ) from None
        raise ConfigError(
            f"cannot read the setting {item!r} ({error}); expected for instance "
            "'vfem.max-iter=50 aggregation=\"ckks\"'; texts have quotes"
        ) from error


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested tables as one, the keys joined by dots."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def toml_value(value: object) -> str:
    """Write a text, number or truth value as TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def toml_text(values: Mapping[str, Any]) -> str:
    """Write flat settings; keys with dots become tables, as Flower reads them."""
    lines = []
    for key, value in values.items():
        head, dot, rest = key.partition(".")
        name = f"{head}.{toml_value(rest)}" if dot else head
        lines.append(f"{name} = {toml_value(value)}\n")
    return "".join(lines)
