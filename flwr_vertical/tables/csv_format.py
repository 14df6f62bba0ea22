"""How a CSV file is written: separator, marks of numbers, encoding, dates; stated by its owner."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flwr_vertical.errors import ConfigError

PREFIX = "csv."
"""Of the keys in a node config."""

_SEPARATORS = {
    "comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " ",
}  # fmt: skip
_DECIMALS = (".", ",")
_THOUSANDS = {"none": "", "space": " ", ",": ",", ".": ".", "'": "'"}
_DATES = ("days", "days-day-first", "days-month-first")


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written; None is found out from the file."""

    # One character between two fields, or its name: comma, semicolon, tab, pipe, space
    separator: str | None = None
    decimal: str | None = None  # Mark before the fraction of a number: . or ,
    # Mark between groups of three digits: , or . or ' or space or none
    thousands: str | None = None
    encoding: str | None = None  # Such as ``"utf-8"``, ``"utf-16"`` or ``"cp1252"``
    # Makes numbers of columns of dates: days since 1970-01-01, with a fraction if there is a time
    # of day. ``days`` leaves a column alone if its days and months cannot be told apart, as in
    # 01/02/2024; ``days-day-first`` and ``days-month-first`` say which comes first. By default
    # dates stay text
    dates: str | None = None

    @classmethod
    def of(cls, given: "CsvFormat | Mapping[str, Any] | None") -> Self:
        """Return a checked format; names may begin with ``csv.``. `ConfigError` names the key."""
        stated = dict(vars(given) if isinstance(given, CsvFormat) else given or {})
        stated = {key.removeprefix(PREFIX): value for key, value in stated.items()}
        known = list(cls.__dataclass_fields__)
        if unknown := sorted(set(stated) - set(known)):
            raise ConfigError(
                f"unknown key {PREFIX + unknown[0]!r}; there are "
                f"{', '.join(PREFIX + key for key in known)}"
            )
        values = {key: _CHECKS[key](value) for key, value in stated.items() if value is not None}
        made = cls(**values)
        if made.decimal is not None and made.decimal in (made.separator, made.thousands):
            other = "separator" if made.decimal == made.separator else "thousands"
            raise ConfigError(
                f"{PREFIX}decimal and {PREFIX}{other} are both {made.decimal!r}; they must differ"
            )
        return made

    @classmethod
    def of_node_config(cls, config: Mapping[str, Any]) -> Self:
        """Return what the keys ``csv.*`` of a node config state."""
        stated = {key: value for key, value in config.items() if key.startswith(PREFIX)}
        return cls.of({key: value for key, value in stated.items() if key != f"{PREFIX}missing"})


def _separator(value: object) -> str:
    mark = _SEPARATORS.get(str(value), str(value))
    if len(mark) != 1 or mark.isalnum() or mark in "\"'\r\n.":
        raise ConfigError(
            f"{PREFIX}separator = {value!r}; expected one character that is no letter, digit or "
            f"quote, or a name: {', '.join(_SEPARATORS)}"
        )
    return mark


def _decimal(value: object) -> str:
    if value not in _DECIMALS:
        raise ConfigError(f"{PREFIX}decimal = {value!r}; expected '.' or ','")
    return str(value)


def _thousands(value: object) -> str:
    text = "none" if value == "" else "space" if value == " " else str(value)
    if text not in _THOUSANDS:
        raise ConfigError(f"{PREFIX}thousands = {value!r}; expected one of {', '.join(_THOUSANDS)}")
    return _THOUSANDS[text]


def _encoding(value: object) -> str:
    try:
        return codecs.lookup(str(value)).name
    except (LookupError, ValueError):
        raise ConfigError(
            f"{PREFIX}encoding = {value!r} is unknown; expected a name such as utf-8, utf-16, "
            "cp1252 or latin-1"
        ) from None


def _dates(value: object) -> str:
    if value not in _DATES:
        raise ConfigError(f"{PREFIX}dates = {value!r}; expected one of {', '.join(_DATES)}")
    return str(value)


_CHECKS = {
    "separator": _separator,
    "decimal": _decimal,
    "thousands": _thousands,
    "encoding": _encoding,
    "dates": _dates,
}
