"""`RecordingGrid`: keeps the transcript of a run, for audits and tests."""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run


@dataclass(frozen=True)
class Record:
    """One message as it travelled.

    Parameters
    ----------
    direction : str
        ``"down"`` (from the server) or ``"up"`` (to the server).
    node_id : int
        The node at the other end.
    content : RecordDict
        What it carried.
    """

    direction: str
    node_id: int
    content: RecordDict


class RecordingGrid(Grid):
    """Wraps any grid and keeps every message in ``transcript``.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Carries the messages.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.transcript: list[Record] = []

    def set_run(self, run: Run) -> None:
        """Set the run of the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Information about the run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message on the wrapped grid."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Get the IDs of all nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Get all nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Record and send."""
        return self._grid.push_messages(self._down(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Receive and record."""
        return self._up(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Record, send, receive and record."""
        return self._up(self._grid.send_and_receive(self._down(messages), timeout=timeout))

    def _down(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        self.transcript += [Record("down", m.metadata.dst_node_id, m.content) for m in sent]
        return sent

    def _up(self, messages: Iterable[Message]) -> list[Message]:
        received = list(messages)
        self.transcript += [
            Record("up", m.metadata.src_node_id, m.content) for m in received if m.has_content()
        ]
        return received
