"""The party's end of a channel: serve until the goodbye, over another stream if one is cut.

Every request is answered once: the last answers are kept until the server says that it has them,
and a request that comes again over a new stream gets the kept one.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from flwr.app import Error, Message

from flwr_vertical.channel import frames
from flwr_vertical.channel import invitation as offers
from flwr_vertical.channel.address import is_loopback, split_address
from flwr_vertical.channel.invitation import Offer
from flwr_vertical.channel.wire import Piece, WireError, pack, unpack
from flwr_vertical.errors import VerticalError
from flwr_vertical.log import logger
from flwr_vertical.version import __version__

_WELCOME_BYTES = 1024


class Connection:
    """A stream that the server has welcomed; iterating over it gives its frames."""

    def __init__(
        self,
        offer: Offer,
        node_id: int,
        token: str,
        timeout: float,
        on_end: "Callable[[Connection], None]",
        number: int = 0,
    ) -> None:
        self.number = number
        self.outbox = frames.Outbox()
        host, _ = split_address(offer.address, "channel-address")
        self._channel = grpc.secure_channel(
            offer.address,
            grpc.ssl_channel_credentials(root_certificates=offer.certificate.encode()),
            options=[
                ("grpc.max_receive_message_length", frames.LARGEST_FRAME),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.min_reconnect_backoff_ms", int(1000 * timeout)),
                ("grpc.enable_http_proxy", int(not is_loopback(host))),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._call = self._channel.stream_stream(f"/{offers.SERVICE}/{offers.METHOD}")(
            iter(self.outbox),
            metadata=(
                (offers.TOKEN_KEY, token),
                (offers.VERSION_KEY, __version__),
                (offers.NODE_KEY, str(node_id)),
            ),
        )
        try:
            self.back = self._await_welcome(timeout)
        except BaseException:
            self.close()
            raise
        self.outbox.beat()  # tells the server that the welcome has arrived
        if not self._call.add_callback(lambda: on_end(self)):
            on_end(self)

    def _await_welcome(self, timeout: float) -> str:
        with self._ended_after(timeout):
            try:
                assembled = frames.Assembler(_WELCOME_BYTES).feed(next(self._call))
            except StopIteration:
                assembled = None
        if assembled is None or assembled.kind != frames.WELCOME:
            raise frames.FrameError("whoever listens there does not speak this protocol")
        return b"".join(assembled.pieces).decode()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._call)

    def code(self) -> grpc.StatusCode:
        """Return how the stream ended; waits until it has."""
        code: grpc.StatusCode = self._call.code()
        return code

    def await_end(self, patience: float) -> None:
        """Let what was sent travel: closing at once could overtake it."""
        with self._ended_after(patience):
            for _ in self._call:
                pass

    @contextmanager
    def _ended_after(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the stream."""
        self.outbox.close()
        self._channel.close()


_PAUSES = (0.3, 1.0)  # before dialling again; the endpoint listens before it sends its offer
_REDIAL = (0.1, 1.0)  # pauses before coming back: first and longest
_REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
}
_FINAL = _REFUSED | {grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED}

Handler = Callable[[Message], Message]


class ChannelError(VerticalError, ConnectionError):
    """A channel could not be opened, or broke."""


class Stream:
    """An open channel; made by `dial`."""

    def __init__(self, offer: Offer, node_id: int) -> None:
        self._offer, self._node_id = offer, node_id
        self._kept: dict[int, list[Piece]] = {}  # answers that the server may not have, by number
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._gone = False  # cut, and there is no way back
        self._current: Connection | None = None
        first = Connection(offer, node_id, offer.token, offer.dial_timeout, self._on_end)
        self._take(first)
        self._beats = threading.Thread(target=self._beat, name="channel-beat", daemon=True)
        self._beats.start()

    def serve(self, handle: Handler, finish: Callable[[bool], None] | None = None) -> None:
        """Answer messages until the server says goodbye."""
        connection = self._current
        assert connection is not None
        try:
            while True:
                try:
                    return self._serve(connection, handle, finish)
                except grpc.RpcError as error:
                    connection = self._replacement(connection, error)
        except (frames.FrameError, WireError) as error:
            raise ChannelError(f"the server broke the channel's rules: {error}") from error
        finally:
            self.close()

    def _serve(
        self, connection: Connection, handle: Handler, finish: Callable[[bool], None] | None
    ) -> None:
        assembler = frames.Assembler(self._offer.max_bytes)
        for frame in connection:
            assembled = assembler.feed(frame)
            if assembled is None:
                continue
            if assembled.kind == frames.BYE:
                self._over.set()
                if finish is not None:
                    finish(bool(assembled.number))
                connection.outbox.finish(frames.cut(frames.BYE))
                try:
                    connection.await_end(5.0)
                except grpc.RpcError:
                    logger.debug("the channel ended after its goodbye", exc_info=True)
                return
            if assembled.kind != frames.REQUEST:
                raise frames.FrameError(f"the server sent a frame of kind {assembled.kind}")
            self._kept = {k: kept for k, kept in self._kept.items() if k >= assembled.settled}
            pieces = self._kept.get(assembled.number)
            if pieces is None:
                pieces = self._kept[assembled.number] = self._answer(assembled, handle)
            # An answer goes the way its request came: if that is cut, the request comes again.
            connection.outbox.put(frames.cut(frames.REPLY, assembled.number, pieces))
            del assembled, frame, pieces
        raise ChannelError("the server ended the channel without a goodbye")

    def _answer(self, assembled: frames.Assembled, handle: Handler) -> list[Piece]:
        message = unpack(assembled.pieces)
        pieces = pack(handle(message))
        size = frames.total_size(pieces)
        if size > self._offer.max_bytes:
            text = (
                f"an answer of {size} bytes exceeds the channel's limit of "
                f"{self._offer.max_bytes}; set transport='messages' for this run"
            )
            pieces = pack(Message(Error(2, text), reply_to=message))
        return pieces

    # -- coming back ------------------------------------------------------------------------

    def _on_end(self, connection: Connection) -> None:
        """Begin to dial again, while the last step perhaps still computes."""
        if self._over.is_set():
            return
        if connection.code() in _FINAL or connection.code() is grpc.StatusCode.OK:
            self._give_up()
            return
        threading.Thread(
            target=self._come_back, args=(connection,), name="channel-redial", daemon=True
        ).start()

    def _come_back(self, connection: Connection) -> None:
        deadline = time.monotonic() + self._offer.reconnect
        pause, longest = _REDIAL
        while connection.back and not self._over.wait(pause) and time.monotonic() < deadline:
            pause = min(2 * pause, longest)
            patience = min(self._offer.dial_timeout, self._offer.reconnect)
            try:
                fresh = Connection(
                    self._offer,
                    self._node_id,
                    connection.back,
                    patience,
                    self._on_end,
                    connection.number + 1,
                )
            except (grpc.RpcError, frames.FrameError) as error:
                if not isinstance(error, grpc.RpcError) or error.code() in _FINAL:
                    break
                continue
            self._take(fresh)
            logger.info("the channel was cut and is open again")
            return
        self._give_up()

    def _take(self, fresh: Connection) -> None:
        with self._changed:
            if self._current is None or self._current.number < fresh.number:
                self._current = fresh
            self._changed.notify_all()
        if self._over.is_set():
            fresh.close()

    def _give_up(self) -> None:
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _replacement(self, broken: Connection, error: grpc.RpcError) -> Connection:
        """Wait for the stream that replaces one; raise if there is none."""
        broken.close()
        patience = self._offer.reconnect + self._offer.dial_timeout
        with self._changed:
            self._changed.wait_for(
                lambda: self._gone or self._over.is_set() or self._current is not broken, patience
            )
            if self._current is None or self._current is broken:
                raise ChannelError(f"the channel broke: {_details(error)}") from error
            return self._current

    def _beat(self) -> None:
        while not self._over.wait(self._offer.heartbeat):
            if self._current is not None:
                self._current.outbox.beat()

    def close(self) -> None:
        """End the channel."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()
            current = self._current
        if current is not None:
            current.close()


def dial(offer: Offer, node_id: int) -> Stream:
    """Open a channel."""
    deadline = time.monotonic() + offer.dial_timeout
    for pause in (*_PAUSES, None):
        try:
            return Stream(offer, node_id)
        except grpc.RpcError as error:
            code, details = error.code(), _details(error)
            certificate = "CERTIFICATE" in details.upper()
            retry = code == grpc.StatusCode.UNAVAILABLE and not certificate
            if not retry or pause is None or time.monotonic() + pause > deadline:
                raise ChannelError(_explain(offer, code, details, certificate)) from None
            time.sleep(pause)
        except (frames.FrameError, VerticalError) as error:
            raise ChannelError(f"cannot open a channel to {offer.address}: {error}") from error
    raise AssertionError("unreachable: the last try returns or raises")


def _details(error: grpc.RpcError) -> str:
    return " ".join(str(error.details() or error.code()).split())[:500]


def _explain(offer: Offer, code: grpc.StatusCode, details: str, certificate: bool) -> str:
    if code in _REFUSED:
        return f"the server at {offer.address} refused the channel: {details}"
    if code == grpc.StatusCode.CANCELLED:
        details = f"no answer within {offer.dial_timeout:g} s"
    advice = (
        "another server listens there, or this machine's clock is off by more than an hour"
        if certificate
        else "if this node cannot reach that address, set channel-address='HOST:PORT' in the run "
        "config (and channel-bind to the address to listen at) and open the port in the firewall"
    )
    return f"cannot open a channel to {offer.address}: {details}; {advice}"
