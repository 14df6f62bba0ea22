"""`RecordingGrid`: keeps the transcript of a run, for audits and tests."""

from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_vertical.grids.proxy import WrappingGrid


@dataclass(frozen=True)
class Record:
    """One message as it travelled."""

    direction: str  # ``"down"`` (from the server) or ``"up"`` (to the server)
    node_id: int  # The node at the other end
    content: RecordDict  # What it carried


class RecordingGrid(WrappingGrid):
    """Wraps any grid and keeps every message in ``transcript``."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.transcript: list[Record] = []

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
