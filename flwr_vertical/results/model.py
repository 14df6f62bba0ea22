"""Fitted models in a common form: fields of plain values, a strategy's name, a version.

A strategy writes a model down as a dataclass that derives from `Model`. Its fields are arrays,
DataFrames, numbers, text, or lists and dicts of these; they can then be saved and read again by
anybody who has the strategy, without pickle.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.log import logger
from flwr_vertical.results.archive import pack, unpack

FORMAT = "flwr-vertical model"
FORMAT_VERSION = 1

_CLASSES: dict[tuple[str, str], type["Model"]] = {}
_FINDERS: list[Callable[[str], None]] = []


class Model:
    """Base class of fitted models; subclass it as a dataclass.

    Attributes
    ----------
    strategy : str
        Name of the strategy that fits it; its `predictions` predict new rows.
    version : int
        Version of its fields. Raise it when a field changes its name or meaning.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass
    ... class Line(Model):
    ...     strategy = "line"
    ...     slope: float
    ...     x: np.ndarray
    >>> Model.from_bytes(Line(2.0, np.arange(3)).to_bytes())
    Line(slope=2.0, x=array([0, 1, 2]))
    """

    strategy: ClassVar[str]
    version: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "strategy"):
            _CLASSES[cls.strategy, cls.__name__] = cls

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of an ``.npz`` file.

        Raises
        ------
        ConfigError
            If a field holds something that cannot be written, saying which.
        """
        return pack_model(self)

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "the model") -> Self:
        """Read what `to_bytes` made.

        Parameters
        ----------
        data : bytes
            The bytes.
        where : str
            Where they come from, for messages.

        Raises
        ------
        ConfigError
            If it is the model of another strategy, or of a newer version.
        DataError
            If it is damaged.
        """
        head, value = _read(data, where)
        if cls is not Model and (head["strategy"], head["model"]) != (cls.strategy, cls.__name__):
            raise ConfigError(
                f"{where} is {_described(head)}; expected one of strategy {cls.strategy!r} "
                f"({cls.__name__}, version {cls.version})"
            )
        made = _make(cls if cls is not Model else None, head, value, where)
        if not isinstance(made, cls):
            raise ConfigError(f"{where} is {_described(head)}, in no form that is known here")
        return made

    @classmethod
    def upgrade(cls, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an older version as those of this one; override it to read some.

        Raises
        ------
        ConfigError
            Unless it is overridden: no older version can be read.
        """
        raise ConfigError(
            f"a model of strategy {cls.strategy!r} in version {version} cannot be read any more; "
            f"expected version {cls.version}: fit it again"
        )


@dataclasses.dataclass
class UnknownModel:
    """A model of a strategy that is not available here, as plain values."""

    strategy: str  # The strategy, and the name of the class
    name: str  # The strategy, and the name of the class
    version: int  # Version of its fields
    fields: dict[str, Any]  # Its fields


def find_strategies_by(find: Callable[[str], None]) -> None:
    """Register what imports a strategy, so that its models are known."""
    _FINDERS.append(find)


def pack_model(model: Any, strategy: str = "") -> bytes:
    """Return a model as the bytes of an ``.npz`` file; plain values are models, too."""
    head = {"format": FORMAT, "format-version": FORMAT_VERSION, **describe_model(model, strategy)}
    value = model
    if isinstance(model, Model):
        value = {name: getattr(model, name) for name in _fields(type(model))}
    elif isinstance(model, UnknownModel):
        value = model.fields
    name = head["model"]
    return pack(value, f"{name}.fields" if name else "the model", head)


def unpack_model(data: bytes, where: str, told: Mapping[str, Any]) -> Any:
    """Read what `pack_model` made."""
    head, value = _read(data, where)
    if any(head[key] != told.get(key) for key in ("strategy", "model", "version")):
        expected = {"strategy": "", "model": "", "version": "?", **told}
        raise ConfigError(f"{where} is {_described(head)}; expected {_described(expected)}")
    return _make(None, head, value, where)


def describe_model(model: Any, strategy: str) -> dict[str, Any]:
    """Return what the file of a model says of it: strategy, class, version."""
    if isinstance(model, UnknownModel):
        return {"strategy": model.strategy, "model": model.name, "version": model.version}
    if isinstance(model, Model):
        name = type(model).__name__
        return {"strategy": model.strategy, "model": name, "version": model.version}
    return {"strategy": strategy, "model": "", "version": 1}


def _fields(cls: type[Model]) -> list[str]:
    try:
        return [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"{cls.__name__} is a Model, but no dataclass; mark it with @dataclass"
        ) from None


def _read(data: bytes, where: str) -> tuple[dict[str, Any], Any]:
    head = unpack(data, where)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise DataError(f"{where} holds no model: expected a file of {FORMAT!r}")
    if head["format-version"] > FORMAT_VERSION:
        raise ConfigError(
            f"{where} was saved in version {head['format-version']} of the format of models; this "
            f"library reads up to {FORMAT_VERSION}: update flwr-vertical"
        )
    return head, head.pop("value")


def _make(cls: type[Model] | None, head: dict[str, Any], value: Any, where: str) -> Any:
    if not head["model"]:
        return value
    cls = cls or _class_of(head, where)
    if cls is None:
        return UnknownModel(head["strategy"], head["model"], head["version"], value)
    if head["version"] > cls.version:
        raise ConfigError(
            f"{where} is {_described(head)}; this library reads up to version {cls.version}: "
            "update it, or fit the model again"
        )
    if head["version"] < cls.version:
        value = cls.upgrade(head["version"], value)
    if set(value) != set(names := _fields(cls)):
        raise DataError(
            f"{where} is {_described(head)}, but its fields are {sorted(value)}; expected "
            f"{sorted(names)}"
        )
    return cls(**value)


def _class_of(head: dict[str, Any], where: str) -> type[Model] | None:
    key = head["strategy"], head["model"]
    if key not in _CLASSES:
        for find in _FINDERS:
            try:
                find(head["strategy"])
            except ConfigError as error:
                logger.warning("%s is kept as plain values: %s", where, error)
    return _CLASSES.get(key)


def _described(head: Mapping[str, Any]) -> str:
    kind = f"{head['model']}, version {head['version']}" if head["model"] else "plain values"
    return f"a model of strategy {head['strategy']!r} ({kind})"
