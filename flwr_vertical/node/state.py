"""What a node remembers between the messages of a run, kept in Flower's ``context.state``."""

from collections.abc import Iterator, MutableMapping
from typing import Any

from flwr.app import Context

from flwr_vertical.protocol.codec import decode, encoded, entries, filled

_PREFIX = "flwr-vertical.state"


class State(MutableMapping[str, Any]):
    """A mapping that is read from ``context.state`` and written back by `save`.

    Carries what the codec carries; decoded arrays are read-only, so assign a new array rather
    than writing into one. Only the values that were assigned are encoded again.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._values = decode(context.state, _PREFIX)
        self._changed: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._changed.add(key)

    def __delitem__(self, key: str) -> None:
        del self._values[key]
        self._changed.add(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def save(self) -> None:
        """Write the changed values back to the context."""
        if not self._changed:
            return
        changed = {key: self._values[key] for key in self._changed if key in self._values}
        state = entries(self._context.state)
        for name, record in encoded(changed, _PREFIX).items():
            # A key may have changed its type of record, so it leaves both before it enters one.
            # A record that was kept, to go back to, stays as it was.
            if name in state:
                left = {k: v for k, v in entries(state[name]).items() if k not in self._changed}
                record = filled(type(record)(), left | entries(record))
            state[name] = record
        self._changed.clear()
