"""Which values a setting takes, by its annotation, choices and bounds."""

import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.errors import ConfigError

NONE = "none"
"""How None is written where only text can be."""

_SCALARS = (bool, int, float, str)


@dataclass(frozen=True)
class Limits:
    """Choices and bounds of a setting; see `setting`."""

    choices: tuple[Any, ...] | None = None
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    @property
    def text(self) -> str:
        """Bounds in words: ``at least 0 and below 1``; "" without."""
        bounds = (self.at_least, self.above, self.at_most, self.below)
        words = zip(("at least", "above", "at most", "below"), bounds, strict=True)
        stated = [f"{word} {bound:g}" for word, bound in words if bound is not None]
        return " and ".join(stated)

    def allow(self, number: float) -> bool:
        """Whether a number is within the bounds."""
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )


@dataclass(frozen=True)
class Values:
    """The values that an annotation takes."""

    # Of ``bool``, ``int``, ``float`` and ``str`` those that may be given
    scalars: tuple[type, ...]
    none: bool  # Whether None may be
    items: type | None  # Of a tuple, the type of its items
    # Whether there is more to the annotation than that, so that types are not checked
    anything: bool
    text: str  # The annotation in words

    @classmethod
    def of(cls, annotation: Any) -> "Values":
        """Read an annotation."""
        union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        members = typing.get_args(annotation) if union else (annotation,)
        scalars, items, none, anything = [], None, False, False
        for member in members:
            arguments = [a for a in typing.get_args(member) if a is not Ellipsis]
            if member in _SCALARS:
                scalars.append(member)
            elif member is type(None):
                none = True
            elif (
                typing.get_origin(member) in (tuple, list, Sequence)
                and len(arguments) == 1
                and arguments[0] in (int, float, str)
            ):
                items = arguments[0]
            else:
                anything = True
        return cls(tuple(scalars), none, items, anything, " or ".join(map(_name, members)))


def checked(
    name: str, value: Any, values: Values, limits: Limits, parse: Callable[[Any], Any] | None = None
) -> Any:
    """Return a value in the form that is kept, or raise `ConfigError`; see `Setting.check`."""
    given = value
    choices = limits.choices
    if value is None and values.none and choices is not None and NONE in choices:
        value = NONE
    elif values.none and _is_none(value, values, choices):
        value = None
    if parse is not None:
        value = parse(value)
    if not (value is None and values.none) and not values.anything:
        value = _typed(name, value, values, limits)
    if value is None and (values.none or values.anything):
        return None
    if choices is not None:
        if not any(value == choice and isinstance(value, type(choice)) for choice in choices):
            raise ConfigError(f"unknown {name} {given!r}; expected one of {list(choices)}")
        return value
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool):
            finite = math.isfinite(number)
            if not finite or not limits.allow(number):
                what = _described(values, limits)
                raise ConfigError(f"{name} must be {what}, got {given!r}")
    return value


def _is_none(value: Any, values: Values, choices: tuple[Any, ...] | None) -> bool:
    if value is None or (isinstance(value, str) and value == "" and "" not in (choices or ())):
        return True
    if choices is not None and NONE in choices:
        return False
    free_text = str in values.scalars and choices is None
    return isinstance(value, str) and value == NONE and not free_text


def _typed(name: str, value: Any, values: Values, limits: Limits) -> Any:
    """Return the value with its type; whole numbers of NumPy are whole numbers, too."""
    if isinstance(value, bool | np.bool_):
        if bool in values.scalars:
            return bool(value)
    elif isinstance(value, int | np.integer):
        if int in values.scalars:
            return int(value)
        if float in values.scalars:
            return float(value)
    elif isinstance(value, float | np.floating):
        if float in values.scalars:
            return float(value)
    elif isinstance(value, str) and str in values.scalars:
        return value
    if values.items is not None and not isinstance(value, bool):
        parts: list[Any] | None = None
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, Sequence | np.ndarray):
            parts = list(value)
        elif values.items in (int, float) and isinstance(value, int | float | np.number):
            parts = [value]
        if parts is not None:
            item = Values((values.items,), False, None, False, "")
            numeric = values.items in (int, float)
            return tuple(_item(name, p, item, limits, numeric, value) for p in parts)
    if limits.choices is not None and str in values.scalars:
        choices = list(limits.choices)
        raise ConfigError(f"unknown {name} {value!r}; expected one of {choices}")
    raise ConfigError(f"{name} must be {_described(values, limits)}, got {value!r}")


def _item(name: str, part: Any, item: Values, limits: Limits, numeric: bool, whole: Any) -> Any:
    if numeric and isinstance(part, str):
        try:
            part = int(part) if int in item.scalars else float(part)
        except ValueError:
            raise ConfigError(f"{name} must be numbers with commas, got {whole!r}") from None
    return _typed(name, part, item, limits)


def _described(values: Values, limits: Limits) -> str:
    words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    kinds = [
        words[kind] for kind in values.scalars if not (kind is int and float in values.scalars)
    ]
    if values.items is not None:
        kinds.append({int: "integers", float: "numbers", str: "texts"}[values.items])
    text = " or ".join(kinds) or "a number"
    if limits.text:
        text += (" of " if limits.text.startswith("at ") else " ") + limits.text
    return text + (" or none" if values.none else "")


def _name(member: Any) -> str:
    if member is type(None):
        return "None"
    if isinstance(member, type) and not typing.get_args(member):
        return str(member.__name__)
    return str(member).replace("typing.", "").replace("collections.abc.", "")
