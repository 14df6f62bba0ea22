"""What a party or a group of steps works out, or reads of an earlier fit, once in a process."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from flwr_vertical.errors import DataError

_T = TypeVar("_T")


class KeptProperty(Generic[_T]):
    """A property whose value stays in ``self.cache``; made by `kept`."""

    def __init__(self, name: str, make: Callable[[Any], _T]) -> None:
        self._name, self._make = name, make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> "KeptProperty[_T]": ...

    @overload
    def __get__(self, instance: Any, owner: type[Any]) -> _T: ...

    def __get__(self, instance: Any, owner: type[Any]) -> "KeptProperty[_T] | _T":
        if instance is None:
            return self
        if self._name not in instance.cache:
            instance.cache[self._name] = self._make(instance)
        found: _T = instance.cache[self._name]
        return found


def kept(name: str) -> Callable[[Callable[[Any], _T]], KeptProperty[_T]]:
    """Make a method a property that is worked out at first use and kept under a name.

    It must follow from table, state and settings: another process works it out again. A step that
    changes what it follows from takes it out of ``self.cache``.

    Examples
    --------
    >>> from flwr_vertical import Party
    >>> class Ranked(Party):
    ...     @kept("ranks")
    ...     def ranks(self):
    ...         return self.table.frame.rank()
    """
    return lambda make: KeptProperty(name, make)


def part_of_fit(party: Any, kind: type[_T], model: str) -> _T:
    """Return what a party saved in the run named ``fitted``, if it is of the server's model."""
    if (key := f"part of {model}") not in party.cache:
        part = party.load_model(kind)
        if part is None:
            raise DataError(
                f"party {party.name!r} does not know which of its models to use; name the run of "
                "the fit as 'fitted' in the run config (in a simulation, go on from a result that "
                "has the parties' parts)"
            )
        if part.model != model:
            raise DataError(
                f"party {party.name!r}: the run named as 'fitted' left the model {part.model}, but "
                f"the server asks for the model {model}; name the run of that fit"
            )
        party.cache[key] = part
    found: _T = party.cache[key]
    return found
