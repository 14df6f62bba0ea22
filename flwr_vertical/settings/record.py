"""Settings as frozen records: the field of a class is the only statement of a setting.

A subclass of `Settings` is a frozen dataclass whose fields are made by `setting`, with their
documentation, choices and bounds. The constructor checks them; the class's documentation, the
run config of an app and the tables of the documentation are made of the same fields.
"""

import dataclasses
import functools
import inspect
import textwrap
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.field import Setting, extra_of, quoted
from flwr_vertical.settings.spelling import nearest
from flwr_vertical.settings.values import Values

_LONGEST = 80  # letters of a value that a repr shows in full


class Params:
    """`get_params`, `set_params` and `clone` of a record of settings.

    `sklearn.base.clone`, and what builds on it, takes such records as it takes estimators.

    Attributes
    ----------
    removed : Mapping[str, str]
        Settings of earlier versions, and for each what to use now: errors quote it.
    """

    removed: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def _param_names(cls) -> list[str]:
        """Return the constructor's arguments, in order."""
        found = inspect.signature(cls).parameters.values()
        return [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as the constructor takes them."""
        return {name: getattr(self, name) for name in self._param_names()}

    def set_params(self, **params: Any) -> Self:
        """Change settings, and return the record itself.

        All settings are checked together first; if that fails, none is changed. A record is
        frozen otherwise, so no setting changes while a run uses it: do not call this then.
        """
        known = self._param_names()
        for name in params:
            if name not in known:
                raise ConfigError(
                    f"{type(self).__name__} has no setting {name!r}"
                    f"{nearest(name, known, self.removed)}; it has {known}"
                )
        changed = self._made({**self.get_params(), **params})
        for name in known:
            object.__setattr__(self, name, getattr(changed, name))
        return self

    def clone(self) -> Self:
        """Return another record with the same settings."""
        return self._made(self.get_params())

    def __repr__(self) -> str:
        """Return the constructor's call, of settings that differ from their defaults."""
        own, defaults = vars(self), self._defaults()
        told = [
            f"{name}={_short(own[name])}"
            for name in self._param_names()
            if name in own and not _same(own[name], defaults[name])
        ]
        return f"{type(self).__name__}({', '.join(told)})"

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Return the constructor's defaults, by name."""
        return {name: p.default for name, p in inspect.signature(cls).parameters.items()}

    def __sklearn_clone__(self) -> Self:
        return self.clone()

    def _made(self, params: dict[str, Any]) -> Self:
        kind: Any = type(self)
        made: Self = kind(**params)
        return made


def _same(value: Any, default: Any) -> bool:
    """Whether a setting has its default; arrays and tables never have."""
    try:
        return value is default or bool(value == default)
    except (TypeError, ValueError):
        return False


def _short(value: Any) -> str:
    """Return a value on one short line: earlier results and tables by their type."""
    text = repr(value)
    if isinstance(value, str) or (len(text) <= _LONGEST and "\n" not in text):
        return text
    if isinstance(value, (list, tuple)):
        return f"<{type(value).__name__} of {len(value)}>"
    return f"<{type(value).__name__}>"


_AFTER = ("Attributes", "Returns", "Raises", "See Also", "Notes", "References", "Examples")


def documented(written: str | None, cls: Any) -> str:
    """Add the section of parameters to a docstring that has none."""
    text = textwrap.dedent(" " * 4 + (written or f"{cls.__name__}.")).strip("\n")
    fields = dataclasses.fields(cls)
    if not fields or "\nParameters\n" in text:
        return text
    rows = []
    for field in fields:
        extra = extra_of(field)
        kind = field.type if isinstance(field.type, str) else _annotation(field.type)
        kind = kind.replace(" | ", " or ")
        if extra.limits.choices is not None:
            kind = "{" + ", ".join(map(quoted, extra.limits.choices)) + "}"
            kind += " or None" if "None" in str(field.type) else ""
        optional = field.default is not dataclasses.MISSING
        rows.append(f"{field.name} : {kind}" + (f", default {quoted(field.default)}" * optional))
        limits = f" ({extra.limits.text})" if extra.limits.text else ""
        rows += textwrap.wrap(
            f"{extra.doc}{limits}", 92, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
    section = "\n".join(["Parameters", "----------", *rows])
    before, after = text, ""
    for name in _AFTER:
        head = f"\n{name}\n{'-' * len(name)}\n"
        if head in text and text.index(head) < len(before):
            before, after = text[: text.index(head)], text[text.index(head) :]
    return f"{before.rstrip()}\n\n{section}\n{after}"


def _annotation(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not typing.get_args(annotation)
    text = annotation.__name__ if plain else str(annotation)
    return text.replace("typing.", "").replace("collections.abc.", "").replace("pathlib.", "")


_DECLARED: "weakref.WeakKeyDictionary[type[Settings], tuple[Setting, ...]]" = (
    weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True, repr=False)
# `setting` is no field specifier: type checkers would overlook a default given by position.
@typing.dataclass_transform(frozen_default=True)
class Settings(Params):
    """A frozen record of settings; subclasses become dataclasses by themselves.

    A subclass with an ``__init__`` of its own is left as it is, and so are those of it.

    Attributes
    ----------
    by_hand : bool
        Whether the constructor was written by hand, so that there are no fields to read.
    """

    by_hand: typing.ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.by_hand = cls.by_hand or "__init__" in vars(cls)
        if cls.by_hand:
            return
        _refuse_reserved(cls)
        written = vars(cls).get("__doc__")
        # As a decorator it would have to be repeated, and could be forgotten, for each subclass.
        dataclasses.dataclass(frozen=True, repr=False)(cls)
        cls.__init__ = _helpful(cls.__init__, cls)  # type: ignore[method-assign]
        cls.__doc__ = documented(written, cls)

    def __post_init__(self) -> None:
        try:
            for item in settings_of(type(self)):
                object.__setattr__(self, item.name, item.check(getattr(self, item.name)))
            self.check()
        except ConfigError as error:
            raise ConfigError(f"{self._subject()}{error}") from error.__cause__

    def check(self) -> None:
        """Raise `ConfigError` if settings do not go together; each by itself is checked before."""

    @classmethod
    def _subject(cls) -> str:
        """Return what errors begin with."""
        return ""

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Return the defaults as an object has them: checked, and in their own type."""
        if cls.by_hand:
            return super()._defaults()
        given = {item.name: item for item in settings_of(cls)}
        missing = dataclasses.MISSING
        return {
            name: item.default if item.default is missing else item.check(item.default)
            for name, item in given.items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], prefix: str = "") -> Self:
        """Make the record of the keys of a run config, with hyphens, that begin with a prefix."""
        keys = {f"{prefix}{item.key}": item.name for item in settings_of(cls) if item.on_flower}
        return cls(**{name: config[key] for key, name in keys.items() if key in config})

    @classmethod
    def config_defaults(cls, prefix: str = "") -> dict[str, Any]:
        """Return the keys of a run config with their defaults, in order."""
        return {
            f"{prefix}{item.key}": item.to_plain(item.flower_default)
            for item in settings_of(cls)
            if item.on_flower and item.flower_default is not dataclasses.MISSING
        }


def settings_of(record: type[Settings]) -> tuple[Setting, ...]:
    """Return the settings of a record class, in the order of its constructor."""
    if record in _DECLARED:
        return _DECLARED[record]
    try:
        hints = typing.get_type_hints(record)
    except NameError as error:
        raise TypeError(
            f"{record.__name__}: an annotation cannot be read ({error}); import its names at the "
            "top of the module, outside TYPE_CHECKING"
        ) from error
    found = []
    for field in dataclasses.fields(record):
        told = vars(extra_of(field))
        if told["flower_default"] is dataclasses.MISSING:
            told = {**told, "flower_default": field.default}
        values = Values.of(hints[field.name])
        found.append(Setting(**told, name=field.name, values=values, default=field.default))
    _DECLARED[record] = tuple(found)
    return _DECLARED[record]


def _helpful(init: Callable[..., None], cls: Any) -> Callable[..., None]:
    """Make a constructor answer a misspelt setting with the nearest one."""
    known = [field.name for field in dataclasses.fields(cls)]

    @functools.wraps(init)
    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
        for name in named:
            if name not in known:
                hint = nearest(name, known, cls.removed)
                raise TypeError(f"{cls.__name__} has no setting {name!r}{hint}; it has {known}")
        init(self, *values, **named)

    return __init__


def _refuse_reserved(cls: type) -> None:
    """Raise unless the annotated names are free: ``name: str = "mine"`` would be a setting."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("flwr_vertical.")]
    taken: set[str] = set()
    fields: set[str] = set()
    for base in bases:
        taken |= {*vars(base), *vars(base).get("__annotations__", {})}
        if dataclasses.is_dataclass(base):
            fields |= {field.name for field in dataclasses.fields(base)}
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if "ClassVar" not in str(annotation) and name in taken - fields:
            raise TypeError(
                f"{cls.__name__}.{name} cannot be a setting, since the name has another meaning; "
                "drop the annotation or write ClassVar, if that is meant, or choose another name"
            )
