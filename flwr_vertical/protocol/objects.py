"""Objects that stay in a process, and how what they hold is written down and taken up again.

An object says itself how, by ``pack`` and ``unpack``, or is of a kind that is known: PyTorch's
modules, optimisers, schedulers and generators, NumPy's generators and arrays, dicts and lists.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from flwr_vertical.errors import CodecError, ProtocolError


@runtime_checkable
class Packable(Protocol):
    """An object that says itself how it is written down, and read by one that was just made."""

    def pack(self) -> Any:
        """Return a tree: dicts, lists, arrays, tensors, numbers, text, bytes, None."""

    def unpack(self, tree: Any) -> None:
        """Take up what `pack` returned."""


def pack_object(name: str, value: Any) -> Any:
    """Return what an object holds, as a tree that shares its memory."""
    return _way(name, value)[0](value)


def unpack_object(name: str, value: Any, tree: Any) -> Any:
    """Have an object take up a tree; returns it, or the array in its place."""
    take_up = _way(name, value)[1]
    try:
        return take_up(value, tree)
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(
            f"the object {name!r} ({type(value).__name__}) cannot take up what its snapshot holds: "
            f"{error}. Has the code or a setting changed since? Go back to what it was, or start "
            "the run anew"
        ) from error


_Way = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]


def _way(name: str, value: Any) -> _Way:
    if isinstance(value, Packable):
        return lambda own: own.pack(), _by_method("unpack")
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return lambda own: own.state_dict(), _by_method("load_state_dict")
    if hasattr(value, "get_state") and hasattr(value, "set_state"):
        return lambda own: own.get_state(), _by_method("set_state")
    if isinstance(value, np.random.Generator):
        return lambda own: own.bit_generator.state, _set_generator
    if isinstance(value, np.ndarray):
        return lambda own: own, lambda own, tree: tree
    if isinstance(value, dict):
        return lambda own: own, _refill_dict
    if isinstance(value, list):
        return lambda own: own, _refill_list
    raise CodecError(
        f"the object {name!r} is a {type(value).__name__}, which nobody here can write down: give "
        "it methods pack() and unpack(tree), or hold what it is made of (state_dict, arrays, "
        "dicts, lists)"
    )


def _by_method(name: str) -> Callable[[Any, Any], Any]:
    def take_up(own: Any, tree: Any) -> Any:
        getattr(own, name)(tree)
        return own

    return take_up


def _set_generator(own: np.random.Generator, tree: Any) -> np.random.Generator:
    own.bit_generator.state = tree
    return own


def _refill_dict(own: dict[Any, Any], tree: dict[Any, Any]) -> dict[Any, Any]:
    own.clear()
    own.update(tree)
    return own


def _refill_list(own: list[Any], tree: list[Any]) -> list[Any]:
    own[:] = tree
    return own
