"""Whether a node's data are those with which the run began.

On the Deployment Runtime each message may come to a new process, which reads the table again. A
file that was replaced meanwhile would give one half of a run other rows than the other half.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from flwr.app import Context

from flwr_vertical.errors import DataError
from flwr_vertical.node.state import State
from flwr_vertical.node.storage import Storage

_T = TypeVar("_T")
_VERSION = "node.data"
_CHECKED = "data-checked"


class DataWatch:
    """Compares a version of the data with the first one of the run, once in a process."""

    def __init__(
        self, storage: Storage, context: Context, state: State, cache: dict[str, Any]
    ) -> None:
        self._storage, self._context = storage, context
        self._state, self._cache = state, cache

    @property
    def noted(self) -> str:
        """The version with which the run began; "" if none was noted."""
        return str(self._state.get(_VERSION, ""))

    def note(self) -> None:
        """Note the version now: the run begins."""
        self._state[_VERSION] = self._version()
        self._cache[_CHECKED] = True

    def checked(self) -> str:
        """Return the version with which the run began, if the data still have it."""
        self._check()
        return self.noted

    def before(self, read: Callable[[], _T]) -> _T:
        """Check the data before they are read."""
        self._check()
        return read()

    def _check(self) -> None:
        if _CHECKED in self._cache or (self._storage.in_memory and not self.noted):
            return  # tables in memory are those of this process, and nobody replaces them
        version = self._version()
        if self.noted and version != self.noted:
            raise DataError(
                f"party {self._storage.party_name(self._context)!r}: its data have changed since "
                "the run began; put back what they were, or start the run anew"
            )
        self._state[_VERSION] = version
        self._cache[_CHECKED] = True

    def _version(self) -> str:
        is_party = self._storage.role(self._context) == "party"
        return self._storage.data_version(self._context) if is_party else ""
