"""What the grids of this library share: node identities, message numbers, waiting for replies."""

import itertools
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flwr_vertical.errors import ConfigError

NodeConfig = Mapping[str, bool | float | int | str]


class Outputs(Protocol):
    """Holds what each party saved as output, and of its model, by the party's name."""

    outputs: dict[str, Any]
    models: dict[str, bytes]


# Flower's codes for an exception in the ClientApp and for a ClientApp process that died.
RAISED, CRASHED = 2, 8


class NodesGrid(Grid):
    """A Flower grid over nodes that live on this machine (or this Ray cluster).

    Every node has a `flwr.app.Context` of its own, made of its node config and the run config, so
    ``context.state`` behaves as on a SuperNode. Use it as a context manager, or `close` it.
    """

    def __init__(
        self, nodes: Sequence[NodeConfig], run_config: Mapping[str, Any] | None = None
    ) -> None:
        if not nodes:
            raise ConfigError("a grid needs at least one node")
        # As Flower does, so that in a ledger each run counts as one; nothing else depends on it.
        run_id = secrets.randbits(63)
        self._run = Run.create_empty(run_id=run_id)
        self._numbers = itertools.count(1)
        self.contexts = {
            node_id: Context(
                run_id=run_id,
                node_id=node_id,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node_id, config in enumerate(nodes, start=1)
        }

    def set_run(self, run: Run) -> None:
        """Set the run; only its ID matters here."""
        self._run = run

    @property
    def run(self) -> Run:
        """Information about the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (``flwr.app.Message`` itself is the usual way)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Get the IDs of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand each message to its node and return at once with the message IDs."""
        numbered = {}
        for message in messages:
            number = str(next(self._numbers))
            message.metadata.__dict__["_message_id"] = number
            if message.metadata.dst_node_id not in self.contexts:
                raise ConfigError(f"no node {message.metadata.dst_node_id} on this grid")
            numbered[number] = message
        self._submit(numbered)
        return list(numbered)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there already; each is returned once."""
        return self._collect(list(message_ids), timeout=0.0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, at most ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = list(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            arrived = self._collect(waiting, timeout=left)
            replies.extend(arrived)
            done = {reply.metadata.reply_to_message_id for reply in arrived}
            waiting = [number for number in waiting if number not in done]
        self._forget(waiting)
        return replies

    @abstractmethod
    def _submit(self, messages: Mapping[str, Message]) -> None:
        """Start handling messages, by number."""

    @abstractmethod
    def _collect(self, numbers: list[str], timeout: float | None) -> list[Message]:
        """Wait until at least one reply is there (or the time is over); return those there are."""

    @abstractmethod
    def _forget(self, numbers: list[str]) -> None:
        """Drop replies that nobody waits for any more."""

    def outputs(self) -> dict[str, Any]:
        """Return what each party saved as its output, by party name (simulation only)."""
        return {}

    def models(self) -> dict[str, bytes]:
        """Return what each party saved of its model, by party name (simulation only)."""
        return {}

    def close(self) -> None:
        """Stop what serves the nodes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def error_reply(message: Message, code: int, error: BaseException) -> Message:
    """Reply to a message as Flower does when a ClientApp raises."""
    return Message(Error(code=code, reason=f"{type(error).__name__}: {error}"), reply_to=message)
