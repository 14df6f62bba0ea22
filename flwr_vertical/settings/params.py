"""Settings read, changed and copied by name, as scikit-learn's estimators have them."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.spelling import nearest

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
