"""One stream as the party sees it: dial, prove who calls, wait for the welcome."""

import threading
from collections.abc import Callable, Iterator

import grpc

from flwr_vertical.channel import invitation as offers
from flwr_vertical.channel.address import is_loopback, split_address
from flwr_vertical.channel.frames import LARGEST_FRAME, WELCOME, Assembler, FrameError, Outbox
from flwr_vertical.channel.invitation import Offer
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
        self.outbox = Outbox()
        host, _ = split_address(offer.address, "channel-address")
        self._channel = grpc.secure_channel(
            offer.address,
            grpc.ssl_channel_credentials(root_certificates=offer.certificate.encode()),
            options=[
                ("grpc.max_receive_message_length", LARGEST_FRAME),
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
        timer = threading.Timer(timeout, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            assembled = Assembler(_WELCOME_BYTES).feed(next(self._call))
        except StopIteration:
            assembled = None
        finally:
            timer.cancel()
        if assembled is None or assembled.kind != WELCOME:
            raise FrameError("whoever listens there does not speak this protocol")
        return b"".join(assembled.pieces).decode()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._call)

    def code(self) -> grpc.StatusCode:
        """Return how the stream ended; waits until it has."""
        code: grpc.StatusCode = self._call.code()
        return code

    def await_end(self, patience: float) -> None:
        """Let what was sent travel: closing at once could overtake it."""
        timer = threading.Timer(patience, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            for _ in self._call:
                pass
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the stream."""
        self.outbox.close()
        self._channel.close()
