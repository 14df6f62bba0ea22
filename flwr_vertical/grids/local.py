"""`LocalGrid`: parties in this process, microseconds a round."""

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_vertical.grids.base import CRASHED, RAISED, NodeConfig, NodesGrid, error_reply
from flwr_vertical.protocol.storage import MemoryStorage


class LocalGrid(NodesGrid):
    """Runs a `ClientApp` for each node in a thread of its own.

    Threads let NumPy work for several parties at once and let the server stop waiting for a
    party that hangs. They are daemons: a hanging party does not keep the interpreter alive.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        Serves every node.
    nodes : Sequence[NodeConfig]
        The node config of each node.
    run_config : Mapping[str, Any], optional
        The run config.
    storage : MemoryStorage, optional
        The storage given to the app, if `outputs` shall find the results.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[NodeConfig],
        run_config: Mapping[str, Any] | None = None,
        *,
        storage: MemoryStorage | None = None,
    ) -> None:
        super().__init__(nodes, run_config)
        self._app = app
        self._storage = storage
        self._ready = threading.Condition()
        self._replies: dict[str, Message] = {}
        self._dropped: set[str] = set()
        self._inboxes: dict[int, queue.SimpleQueue[tuple[str, Message] | None]] = {}

    def _submit(self, number: str, message: Message) -> None:
        node_id = message.metadata.dst_node_id
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
            try:
                reply = self._app(message, context)
            except Exception as error:  # as a SuperNode does: the error is the reply
                reply = error_reply(message, RAISED, error)
            except SystemExit as error:  # would end this thread, and nobody would hear of it
                reply = error_reply(message, CRASHED, error)
            with self._ready:
                if number in self._dropped:
                    self._dropped.discard(number)
                else:
                    self._replies[number] = reply
                self._ready.notify_all()
            del item, message, reply  # a large block must not outlive its round here

    def _collect(self, numbers: list[str], timeout: float | None) -> list[Message]:
        with self._ready:
            self._ready.wait_for(lambda: any(n in self._replies for n in numbers), timeout)
            return [self._replies.pop(n) for n in numbers if n in self._replies]

    def _forget(self, numbers: list[str]) -> None:
        with self._ready:
            for number in numbers:
                if self._replies.pop(number, None) is None:
                    self._dropped.add(number)

    def outputs(self) -> dict[str, Any]:
        """Return what each party saved as its output."""
        return dict(self._storage.outputs) if self._storage is not None else {}

    def close(self) -> None:
        """Let the threads end once they have finished what they are doing."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        self._inboxes.clear()
