"""`LocalGrid`: parties in this process, microseconds a round."""

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_vertical.errors import ConfigError
from flwr_vertical.grids.base import CRASHED, RAISED, NodeConfig, NodesGrid, Outputs, error_reply
from flwr_vertical.grids.blas_threads import n_cores, thread_limits

# A party that has run for so many seconds no longer keeps others waiting: it may be hanging.
_LONG = 1.0


class LocalGrid(NodesGrid):
    """Runs a `ClientApp` for each node in a thread of its own.

    Threads let NumPy work for several parties at once and let the server stop waiting for a
    party that hangs. They are daemons: a hanging party does not keep the interpreter alive.

    No more parties run at once than there are cores, in the order in which they were asked; one
    that has run for a second does not count any more, so that one that hangs does not keep
    the others waiting. While several run, each may use its share of the cores for BLAS and torch.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        Serves every node.
    nodes : Sequence[NodeConfig]
        The node config of each node.
    run_config : Mapping[str, Any], optional
        The run config.
    storage : object with ``outputs`` and ``models``, optional
        The storage given to the app, if `outputs` and `models` shall find the results.
    max_parallel : int, optional
        How many parties run at once (default: as many as this process may use cores).

    Raises
    ------
    ConfigError
        If there is no node, or `max_parallel` is below 1.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[NodeConfig],
        run_config: Mapping[str, Any] | None = None,
        *,
        storage: Outputs | None = None,
        max_parallel: int | None = None,
    ) -> None:
        super().__init__(nodes, run_config)
        if max_parallel is not None and max_parallel < 1:
            raise ConfigError(f"max_parallel must be at least 1, got {max_parallel}")
        self._app = app
        self._cores = n_cores()
        self._max_parallel = max_parallel or self._cores
        self._storage = storage
        self._ready = threading.Condition()
        self._replies: dict[str, Message] = {}
        self._dropped: set[str] = set()
        self._inboxes: dict[int, queue.SimpleQueue[tuple[str, Message] | None]] = {}
        # In the order of submission; and by node, when the message that it is at was begun.
        self._waiting: dict[str, Message] = {}
        self._running: dict[int, float] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, at most ``timeout`` seconds."""
        messages = list(messages)
        share = self._cores // max(1, min(self._max_parallel, len(messages)))
        with thread_limits.limited(max(1, share)):
            return super().send_and_receive(messages, timeout=timeout)

    def _submit(self, messages: Mapping[str, Message]) -> None:
        with self._ready:
            self._waiting |= messages
            self._begin()

    def _begin(self) -> None:
        """Hand messages to idle nodes as long as there is a core for them."""
        now = time.monotonic()
        free = self._max_parallel - sum(now - since < _LONG for since in self._running.values())
        for number in list(self._waiting):
            if free <= 0:
                return
            node_id = self._waiting[number].metadata.dst_node_id
            if node_id not in self._running:
                self._running[node_id] = now
                self._hand_over(node_id, number, self._waiting.pop(number))
                free -= 1

    def _hand_over(self, node_id: int, number: str, message: Message) -> None:
        if node_id not in self._inboxes:
            self._inboxes[node_id] = queue.SimpleQueue()
            threading.Thread(
                target=self._serve,
                args=(self.contexts[node_id], self._inboxes[node_id]),
                name=f"flwr-vertical-node-{node_id}",
                daemon=True,
            ).start()
        self._inboxes[node_id].put((number, message))

    def _serve(
        self, context: Context, inbox: "queue.SimpleQueue[tuple[str, Message] | None]"
    ) -> None:
        while (item := inbox.get()) is not None:
            number, message = item
            thread_limits.adopt()
            try:
                reply = self._app(message, context)
            except Exception as error:  # as a SuperNode does: the error is the reply
                reply = error_reply(message, RAISED, error)
            except SystemExit as error:  # would end this thread, and nobody would hear of it
                reply = error_reply(message, CRASHED, error)
            with self._ready:
                del self._running[message.metadata.dst_node_id]
                self._begin()
                if number in self._dropped:
                    self._dropped.discard(number)
                else:
                    self._replies[number] = reply
                self._ready.notify_all()
            del item, message, reply  # a large block must not outlive its round here

    def _collect(self, numbers: list[str], timeout: float | None) -> list[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._ready:
            while not (found := [n for n in numbers if n in self._replies]):
                self._begin()  # where parties have become slow since
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                if self._waiting:
                    left = _LONG / 4 if left is None else min(left, _LONG / 4)
                self._ready.wait(left)
            return [self._replies.pop(n) for n in found]

    def _forget(self, numbers: list[str]) -> None:
        with self._ready:
            for number in numbers:
                if self._waiting.pop(number, None) is not None:
                    continue  # it was not begun, and need not be
                if self._replies.pop(number, None) is None:
                    self._dropped.add(number)

    def outputs(self) -> dict[str, Any]:
        """Return what each party saved as its output."""
        return dict(self._storage.outputs) if self._storage is not None else {}

    def models(self) -> dict[str, bytes]:
        """Return what each party saved of its model."""
        return dict(self._storage.models) if self._storage is not None else {}

    def close(self) -> None:
        """Let the threads end once they have finished what they are doing."""
        with self._ready:
            self._waiting.clear()
            for inbox in self._inboxes.values():
                inbox.put(None)
            self._inboxes.clear()
