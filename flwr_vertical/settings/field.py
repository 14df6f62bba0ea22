"""One setting: how it is declared, and what is known of it afterwards."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from flwr_vertical.settings.values import NONE, Limits, Values, checked

_KEY = "flwr-vertical"


@dataclasses.dataclass(frozen=True)
class Extra:
    """What a dataclass field does not hold itself."""

    doc: str  # What it means
    limits: Limits  # Choices and bounds
    # parse, plain: See `setting`
    parse: Callable[[Any], Any] | None
    plain: Callable[[Any], Any] | None
    on_flower: bool  # Whether a run config has it
    flower_default: Any  # Default in a run config


def extra_of(field: "dataclasses.Field[Any]") -> Extra:
    """Return what `setting` was told; nothing of a field such as ``k: int = 3``."""
    missing = dataclasses.MISSING
    known: Extra = field.metadata.get(_KEY, Extra("", Limits(), None, None, True, missing))
    return known


def setting(
    default: Any,
    doc: str = "",
    *,
    choices: Sequence[Any] | None = None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    parse: Callable[[Any], Any] | None = None,
    plain: Callable[[Any], Any] | None = None,
    on_flower: bool = True,
    flower_default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a setting: ``k: int = setting(5, "Number of donors.", at_least=1)``.

    The annotation says which values are taken: ``bool``, ``int``, ``float``, ``str``, a tuple of
    one of them such as ``tuple[str, ...]`` (also given as text with commas), or one of these and
    ``None`` (also given as text, ``""`` or, except where any text is valid, ``"none"``). Numbers
    are finite.

    Parameters
    ----------
    default : Any
        A setting without one is written ``k: int``, and before those that have one.
    doc : str
        What it means; rows of a table are made of it, so it has neither lists nor headings.
    choices : sequence, optional
        The only valid values. With ``"none"`` among them, ``None`` is taken for it.
    at_least, above, at_most, below : float, optional
        Bounds, inclusive or exclusive; of a tuple, for each item.
    parse : Callable, optional
        Makes the value that is kept of the value that was given, or raises `ConfigError`. What it
        returns is checked as other values are; other types than those above are not.
    plain : Callable, optional
        Makes the number, truth value or text that stands for the value in results and run
        configs, where the value itself is none.
    on_flower : bool, default True
        Whether a run config has it.
    flower_default : optional
        Default in a run config, where it is another one.

    Returns
    -------
    dataclasses.Field
    """
    limits = Limits(None if choices is None else tuple(choices), at_least, above, at_most, below)
    extra = Extra(doc, limits, parse, plain, on_flower, flower_default)
    return dataclasses.field(default=default, metadata={_KEY: extra})


@dataclasses.dataclass(frozen=True)
class Setting(Extra):
    """A setting as it was declared."""

    name: str  # As in Python
    values: Values  # Which values its annotation takes
    default: Any  # Default in Python; ``dataclasses.MISSING`` if there is none

    @property
    def key(self) -> str:
        """Name in a run config, with hyphens."""
        return self.name.replace("_", "-")

    @property
    def type_text(self) -> str:
        """Valid values in a run config, in short, such as ``{"a", "b"}`` or ``int``."""
        if self.limits.choices is None:
            return self.values.text
        none = () if NONE in self.limits.choices or not self.values.none else (NONE,)
        return "{" + ", ".join(map(quoted, (*self.limits.choices, *none))) + "}"

    @property
    def bounds_text(self) -> str:
        """Bounds in words, such as ``at least 1``; "" without."""
        return self.limits.text

    def check(self, value: Any) -> Any:
        """Return the value in the form that is kept; `ConfigError` if it can be none."""
        return checked(self.name, value, self.values, self.limits, self.parse)

    def to_plain(self, value: Any) -> Any:
        """Return the number, truth value or text that stands for a value; `check` reads it."""
        if self.plain is not None:
            return self.plain(value)
        if value is None:
            return NONE if self.limits.choices is not None else ""
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return value


def quoted(value: Any) -> str:
    """Write a value with double quotes around text."""
    return f'"{value}"' if isinstance(value, str) else str(value)
