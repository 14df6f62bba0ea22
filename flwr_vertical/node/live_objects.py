"""Live objects: models, optimisers and trees that stay in a party's process between messages.

What a step assigns to ``self.state`` is encoded at each message; a model of 120 MB should not be.
``self.live`` holds it as it is. The state has only its version, a new one after each step that
may have changed it, so that it is noticed where the objects in a process are not those that the
last step left: another process served it, or this one is new. They then come from the party's own
disk, if that holds this very version, else the step fails and the run goes back to a snapshot. A
step never starts from fresh weights without a word.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from flwr_vertical.errors import StateLostError
from flwr_vertical.protocol.objects import pack_object, unpack_object

VERSION = "node.live"  # in the state; the server may not set it
_KEY = "node.live-objects"  # in the cache

_T = TypeVar("_T")
Load = Callable[[str], dict[str, Any] | None]


class LiveObjects:
    """Objects by name, each with a way to be written down (`flwr_vertical.protocol.objects`).

    Examples
    --------
    >>> from flwr_vertical import Party, step
    >>> class Trainer(Party):
    ...     @step
    ...     def fit(self, rate):
    ...         net = self.live.get("net", self._new_net)
    ...         net["w"] -= rate * 0.5
    ...         return {}
    ...
    ...     def _new_net(self):
    ...         return {"w": 0.0}
    """

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._packed: dict[str, Any] = {}  # from the disk, of objects that nobody asked for yet
        self._here: str | None = ""  # version of both; None after a step that did not end
        self._wanted = ""
        self._touched = False
        self._load: Load = lambda version: None
        self._who = "this node"

    # -- for steps -------------------------------------------------------------------------

    def get(self, name: str, make: Callable[[], _T] | None = None, *, changes: bool = True) -> _T:
        """Return an object, as the last step left it."""
        self._settle()
        if name not in self._objects:
            if make is None and name not in self._packed:
                raise KeyError(f"no live object {name!r}; there are {sorted(self)}")
            if make is None:
                raise KeyError(f"live object {name!r} must be made anew in this process: pass make")
            made = make()
            if name in self._packed:
                made = unpack_object(name, made, self._packed[name])
                del self._packed[name]
            else:
                pack_object(name, made)  # says now whether it can be done
                changes = True
            self._objects[name] = made
        if changes:
            self._touch()
        found: _T = self._objects[name]
        return found

    def put(self, name: str, value: Any) -> None:
        """Hold an object under a name, in place of the one that was there."""
        self._settle()
        pack_object(name, value)
        self._packed.pop(name, None)
        self._objects[name] = value
        self._touch()

    def drop(self, name: str) -> None:
        """Hold an object no longer."""
        self._settle()
        self._packed.pop(name, None)
        self._objects.pop(name, None)
        self._touch()

    def __contains__(self, name: object) -> bool:
        self._settle()
        return name in self._objects or name in self._packed

    def __iter__(self) -> Iterator[str]:
        self._settle()
        return iter([*self._objects, *self._packed])

    # -- for who serves the steps ----------------------------------------------------------

    def begin(self, version: str, load: Load, who: str) -> None:
        """Say, before a step, which version it builds on, and where else it can be found."""
        self._wanted, self._load, self._who = version, load, who
        self._touched = False

    def end(self) -> str | None:
        """Return, after a step, the new version if it may have changed something."""
        if not self._touched:
            return None
        self._here = self._wanted = secrets.token_hex(8)
        self._touched = False
        return self._here

    def pack(self) -> dict[str, Any]:
        """Return what all objects hold, sharing their memory."""
        self._settle()
        packed = {name: pack_object(name, value) for name, value in self._objects.items()}
        return packed | self._packed

    def settle(self) -> None:
        """Have the version that is wanted here, now; raises as `get`."""
        self._settle()

    def _touch(self) -> None:
        # Until the step has ended nobody may take these for the version that it began with.
        self._touched, self._here = True, None

    def _settle(self) -> None:
        if self._touched or self._here == self._wanted:
            return
        found = self._load(self._wanted) if self._wanted else {}
        if found is None:
            raise StateLostError(
                f"{self._who}: the live objects that its last step left are lost: the process that "
                "held them has ended, or messages of this run are served by several processes. "
                "Have one process serve the run (live channels), and keep snapshots to go back to "
                "(checkpoint with checkpoint_every)"
            )
        self._objects.clear()
        self._packed = found
        self._here = self._wanted


def live_of(cache: dict[str, Any]) -> LiveObjects:
    """Return the live objects of a node; they end with its cache."""
    found: LiveObjects = cache.setdefault(_KEY, LiveObjects())
    return found
