"""A party's stream as the endpoint sees it."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

import grpc
from flwr.app import Message

from flwr_vertical.channel.frames import BYE, REPLY, Assembler, FrameError, Outbox, cut
from flwr_vertical.channel.wire import WireError, unpack
from flwr_vertical.log import logger

_DIED = "its stream was cut: the party's process ended, or the connection broke"


class Peer:
    """One admitted stream."""

    def __init__(
        self,
        node_id: int,
        max_bytes: int,
        on_reply: Callable[[int, int, Message], str],
        on_end: "Callable[[Peer, str, bool], None]",
        on_heard: "Callable[[Peer], None]",
    ) -> None:
        self.node_id = node_id
        self.outbox = Outbox()
        self.done = threading.Event()
        self.heard = time.monotonic()
        self._assembler = Assembler(max_bytes)
        self._on_reply = on_reply
        self._on_end = on_end
        self._on_heard = on_heard
        self._context: grpc.ServicerContext | None = None
        self._reader: threading.Thread | None = None
        self._fault = ""
        self._over = threading.Event()
        self._lock = threading.Lock()

    def stream(
        self, requests: Iterator[bytes], context: grpc.ServicerContext, first: Iterable[bytes]
    ) -> Iterator[bytes]:
        """Serve the stream: yield what goes to the party; a thread reads what it sends."""
        self._context = context
        if not context.add_callback(lambda: self.end(_DIED)):
            self.end(_DIED)
        self._reader = threading.Thread(
            target=self._read, args=(requests,), name=f"channel-node-{self.node_id}", daemon=True
        )
        self._reader.start()
        try:
            yield from first
            yield from self.outbox
            self.done.wait()  # a stream ends when the party has said goodbye, too
            if self._fault:
                context.abort(grpc.StatusCode.ABORTED, self._fault)
        finally:
            self._over.set()

    def end(self, reason: str, *, tell: bool = False) -> None:
        """End the stream, once; with ``tell`` the party hears why, and must not come back."""
        with self._lock:
            if self.done.is_set():
                return
            self._fault = reason if tell else ""
            self.done.set()
        self.outbox.close()
        self._on_end(self, reason, not tell)

    def cut(self, reason: str) -> None:
        """End a stream whose other end does not move: what waits for it is dropped."""
        self.end(reason, tell=True)
        if self._context is not None and not self._over.wait(0.5):  # it takes nothing any more
            self._context.cancel()

    def say_goodbye(self, keep_state: bool) -> None:
        """Have the party end its service; the number says whether it shall keep its state."""
        self.outbox.finish(cut(BYE, int(keep_state)))

    def join(self, patience: float) -> None:
        """Wait for the thread that reads."""
        if self._reader is not None:
            self._reader.join(patience)

    def _read(self, requests: Iterator[bytes]) -> None:
        try:
            first = True
            for frame in requests:
                self.heard = time.monotonic()
                if first:
                    self._on_heard(self)
                    first = False
                assembled = self._assembler.feed(frame)
                if assembled is None:
                    continue
                if assembled.kind == BYE:
                    return self.end("")
                if assembled.kind != REPLY:
                    raise FrameError(f"a party sent a frame of kind {assembled.kind}")
                message = unpack(assembled.pieces)
                number = assembled.number
                del assembled, frame  # a large block must not outlive its round here
                wrong = self._on_reply(self.node_id, number, message)
                del message
                if wrong:
                    raise FrameError(wrong)
        except (FrameError, WireError) as error:
            logger.warning("the channel to node %d is closed: %s", self.node_id, error)
            return self.end(f"it broke the channel's rules: {error}", tell=True)
        except Exception:  # gRPC says no more than that the stream is over
            logger.debug("the stream of node %d ended", self.node_id, exc_info=True)
        return self.end(_DIED)
