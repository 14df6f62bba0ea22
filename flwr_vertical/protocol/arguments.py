"""What a step takes: types by its signature, shapes and bounds by what it is annotated with.

::

    @step
    def open_products(
        self,
        n_groups: Annotated[int, Within(1, "n_samples")],
        group: Annotated[Indices, Shape("n_samples"), Within(-1, "n_groups - 1")],
        widths: Annotated[list[Annotated[int, Within(0, 999)]], AddsUpTo("observed")],
        helper: Annotated[str, OWN] = "",
    ) -> Summands: ...

What is said of ``int`` within the list is said of each of its numbers.

``**arguments: Unpack[SomeTypedDict]`` takes what the `TypedDict` lists, with its annotations. A
node checks a message against this before the step sees it. A key of it such as ``"rows:*"`` stands
for all arguments whose names begin so. Expressions may name the strategy's settings, ``n_samples``,
``n_parties`` and other arguments: whole numbers, and lists and arrays (by their length).
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import numpy as np

from flwr_vertical.errors import ConfigError, ProtocolError
from flwr_vertical.protocol.declaration import evaluate

Bound: TypeAlias = int | float | str
_F = TypeVar("_F", bound=Callable[..., Any])
_TAKES_AS = "takes_as"


@dataclass(frozen=True)
class _Mark:
    """Says of an argument what needs no numbers."""

    name: str

    def __repr__(self) -> str:
        return self.name


OWN: Final = _Mark("OWN")
"""Marks an argument that may differ between parties; all others are the same for all."""


@dataclass(frozen=True)
class Within:
    """Bounds of a number, of an array's numbers, or of the length of a text or a list."""

    least: Bound
    most: Bound


@dataclass(frozen=True, init=False)
class Shape:
    """Shape of an array: a number, an expression or None (any) for each axis."""

    axes: tuple[int | str | None, ...]

    def __init__(self, *axes: int | str | None) -> None:
        object.__setattr__(self, "axes", axes)


@dataclass(frozen=True)
class OneOf:
    """The values that a text may have."""

    choices: tuple[str, ...]


@dataclass(frozen=True)
class Is:
    """The one value that an argument may have, as an expression: it repeats a setting."""

    expression: str

    def problem(self, value: Any, names: Mapping[str, Any]) -> str:
        """Return what is wrong with a value, "" for nothing."""
        try:
            agreed = evaluate(self.expression, names)
        except ConfigError:
            return "belongs to a setting that this strategy does not have"
        if value == agreed:
            return ""
        got, wanted = str(value)[:40], str(agreed)[:40]
        return f"is {got!r}, expected {wanted!r}, by the settings that this node agreed to"


DISTINCT: Final = _Mark("DISTINCT")
"""Marks an array of which no number comes twice, or a list of which no item does."""


@dataclass(frozen=True)
class AddsUpTo:
    """What the numbers of a list or an array add up to, as an expression."""

    total: str


@dataclass(frozen=True)
class Argument:
    """What one argument of a step may be."""

    type: Any
    marks: tuple[Any, ...] = ()
    item: "Argument | None" = None  # What each item of a list may be

    def problem(self, value: Any, names: Mapping[str, Any]) -> str:
        """Return what is wrong with a value of the right type, "" for nothing."""
        for mark in self.marks:
            if isinstance(mark, Shape) and (found := _wrong_shape(mark, value, names)):
                return found
            if isinstance(mark, Within) and (found := _out_of_bounds(mark, value, names)):
                return found
            if isinstance(mark, OneOf) and value not in mark.choices:
                return f"is {str(value)[:40]!r}, expected one of {list(mark.choices)}"
            if isinstance(mark, Is) and (found := mark.problem(value, names)):
                return found
            if mark is DISTINCT and len(np.unique(value)) < np.size(value):
                return f"has {'an item' if isinstance(value, list) else 'a number'} twice"
            if isinstance(mark, AddsUpTo):
                whole, total = int(np.sum(value, dtype=np.int64)), evaluate(mark.total, names)
                if whole != total:
                    return f"adds up to {whole}, expected {total}"
        if self.item is None or not self.item.marks:
            return ""
        return next((found for one in value if (found := self.item.problem(one, names))), "")


@dataclass(frozen=True)
class Arguments:
    """What a step takes, by name."""

    named: Mapping[str, Argument]
    required: frozenset[str]
    further: Argument | None  # of what ``**arguments`` takes
    defaults: Mapping[str, Any] = field(default_factory=dict)  # Of what may be left out; not None

    @property
    def unchecked(self) -> list[str]:
        """Arguments that have neither a type nor a mark."""
        return [name for name, of in self.named.items() if of.type is Any and not of.marks]

    def own_names(self, names: "typing.Iterable[str]") -> list[str]:
        """Return which of these arguments may differ between parties."""
        return [name for name in names if (of := self._of(name)) is not None and OWN in of.marks]

    def unknown(self, names: "typing.Iterable[str]") -> list[str]:
        """Return which of these arguments the step does not take."""
        return sorted(name for name in names if self._of(name) is None)

    def missing(self, names: "typing.Iterable[str]") -> list[str]:
        """Return which arguments the step needs beside these."""
        return sorted(self.required - set(names))

    def problem(self, values: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
        """Return what is wrong with the values of a message, "" for nothing."""
        counted = {
            name: value if isinstance(value, int) else len(value)
            for name, value in values.items()
            if isinstance(value, int | list) or np.ndim(value)
        }
        names = {**counted, **facts}  # no argument stands for a setting of the same name
        known = {name: of for name in values if (of := self._of(name)) is not None}
        for name, argument in known.items():  # bounds are of arguments of the right type
            if found := _wrong_type(argument.type, values[name]):
                return f"its argument {name!r} {found}"
        for name, default in self.defaults.items():  # what is left out repeats settings as well
            for mark in self.named[name].marks if name not in values else ():
                with suppress(ConfigError):  # a strategy without that setting
                    if isinstance(mark, Is) and evaluate(mark.expression, names) != default:
                        return f"its argument {name!r} is left out, and settings have another value"
        for name, argument in known.items():
            try:
                found = argument.problem(values[name], names)
            except ConfigError:
                found = "is bounded by an argument that is missing"
            if found:
                return f"its argument {name!r} {found}"
        return ""

    def _of(self, name: str) -> Argument | None:
        prefix, colon, _ = name.partition(":")
        return self.named.get(f"{prefix}{colon}*" if colon else name, self.further)


def takes_as(other: Callable[..., Any]) -> Callable[[_F], _F]:
    """Mark a step that hands its arguments on to another one: it takes what that one takes."""

    def mark(function: _F) -> _F:
        setattr(function, _TAKES_AS, other)
        return function

    return mark


def check_fits(party: str, argument: str, value: Any, *marks: Any) -> None:
    """Refuse an argument by marks that no signature has: they follow from what the party has."""
    if found := Argument(Any, marks).problem(value, {}):
        raise ProtocolError(
            f"party {party!r}: argument {argument!r} {found}, by what the party has; do server and "
            "nodes run the same version of the strategy?"
        )


@functools.lru_cache(maxsize=512)
def arguments_of(step: Callable[..., Any]) -> Arguments:
    """Return what a step takes, from its signature."""
    step = getattr(step, _TAKES_AS, step)
    try:
        hints = typing.get_type_hints(step, include_extras=True)
    except NameError as error:  # types that are imported for type checking alone
        raise ConfigError(
            f"the types of step {step.__qualname__!r} cannot be read ({error}): import what its "
            "signature names where its module is imported"
        ) from error
    named: dict[str, Argument] = {}
    further, required, defaults = None, set(), {}
    for name, parameter in inspect.signature(step).parameters.items():
        if name == "self":
            continue
        hint = hints.get(name, Any)
        found = _argument(hint)
        if typing.get_origin(hint) is typing.Unpack:  # **arguments of a TypedDict
            (fields,) = typing.get_args(hint)
            typed = typing.get_type_hints(fields, include_extras=True)
            named |= {key: _argument(of) for key, of in typed.items()}
            required |= fields.__required_keys__
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            further = found
        else:
            named[name] = found
            if parameter.default is inspect.Parameter.empty:
                required.add(name)
            elif parameter.default is not None:
                defaults[name] = parameter.default
    return Arguments(named, frozenset(required), further, defaults)


def _argument(hint: Any) -> Argument:
    if typing.get_origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        base = _argument(inner)
        return Argument(base.type, (*base.marks, *marks), base.item)
    if typing.get_origin(hint) is typing.NotRequired:
        return _argument(typing.get_args(hint)[0])
    if typing.get_origin(hint) is list:
        item = _argument(typing.get_args(hint)[0])
        return Argument(types.GenericAlias(list, (item.type,)), (), item)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        # None does not travel: it stands for an argument that is absent.
        kinds = [one for one in typing.get_args(hint) if one is not type(None)]
        return _argument(kinds[0]) if len(kinds) == 1 else Argument(Any)
    return Argument(hint)


def _wrong_type(kind: Any, value: Any) -> str:
    if kind is Any:
        return ""
    origin = typing.get_origin(kind)
    if origin is np.ndarray or kind is np.ndarray:
        return _wrong_array(kind, value)
    if origin is list or kind is list:
        if not isinstance(value, list):
            return f"is {type(value).__name__}, expected a list"
        of = (typing.get_args(kind) or (Any,))[0]
        return next((found for item in value if (found := _wrong_type(of, item))), "")
    if kind is float:
        if type(value) not in (int, float, np.float64):
            return f"is {type(value).__name__}, expected a number"
        return "" if np.isfinite(value) else f"is {value}, expected a finite number"
    expected = {int: (int, np.int64), bool: (bool, np.bool_), str: (str,), bytes: (bytes,)}
    if kind in expected and type(value) not in expected[kind]:
        return f"is {type(value).__name__}, expected {kind.__name__}"
    return ""


def _wrong_array(kind: Any, value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"is {type(value).__name__}, expected an array"
    # numpy.ndarray[shape, numpy.dtype[scalar]]
    arguments = typing.get_args(kind)
    inner = typing.get_args(arguments[1]) if len(arguments) == 2 else ()
    scalar = typing.get_origin(inner[0]) or inner[0] if inner else Any
    if scalar is Any:  # also infinities
        return ""
    if isinstance(scalar, type) and not issubclass(value.dtype.type, scalar):
        return f"is an array of {value.dtype}, expected {scalar.__name__}"
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return "holds numbers that are not finite"
    return ""


def _wrong_shape(shape: Shape, value: Any, names: Mapping[str, Any]) -> str:
    wanted = tuple(None if axis is None else int(evaluate(axis, names)) for axis in shape.axes)
    got = tuple(np.shape(value))
    fits = len(got) == len(wanted) and all(
        b is None or a == b for a, b in zip(got, wanted, strict=True)
    )
    return "" if fits else f"has shape {got}, expected {wanted}"


def _out_of_bounds(bounds: Within, value: Any, names: Mapping[str, Any]) -> str:
    least, most = (
        evaluate(bound, names) if isinstance(bound, str) else bound
        for bound in (bounds.least, bounds.most)
    )
    if isinstance(value, np.ndarray):
        if not value.size:
            return ""
        low, high = value.min(), value.max()
        what = f"has numbers from {low} to {high}"
    elif isinstance(value, str | bytes | list):
        low = high = len(value)
        what = f"has length {low}"
    else:
        low = high = value
        what = f"is {value}"
    return "" if least <= low and high <= most else f"{what}, expected {least} to {most}"
