"""The party's end of a channel: dial, prove who calls, serve messages until the goodbye."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import grpc
from flwr.app import Error, Message

from flwr_vertical.channel import offer as offers
from flwr_vertical.channel.address import is_loopback, split_address
from flwr_vertical.channel.frames import (
    BYE,
    LARGEST_FRAME,
    REPLY,
    REQUEST,
    WELCOME,
    Assembler,
    FrameError,
    Outbox,
    cut,
    total_size,
)
from flwr_vertical.channel.offer import Offer
from flwr_vertical.channel.wire import WireError, pack, unpack
from flwr_vertical.errors import VerticalError
from flwr_vertical.version import __version__

logger = logging.getLogger("flwr_vertical")

_PAUSES = (0.3, 1.0)  # before dialling again; the endpoint listens before it sends its offer


class ChannelError(VerticalError, ConnectionError):
    """A channel could not be opened, or broke."""


class Stream:
    """An open channel; made by `dial`."""

    def __init__(self, offer: Offer, node_id: int) -> None:
        self._offer = offer
        self._outbox = Outbox()
        self._stop = threading.Event()
        host, _ = split_address(offer.address, "channel-address")
        self._channel = grpc.secure_channel(
            offer.address,
            grpc.ssl_channel_credentials(root_certificates=offer.certificate.encode()),
            options=[
                ("grpc.max_receive_message_length", LARGEST_FRAME),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.min_reconnect_backoff_ms", int(1000 * offer.dial_timeout)),
                ("grpc.enable_http_proxy", int(not is_loopback(host))),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._call: Iterator[bytes] = self._channel.stream_stream(
            f"/{offers.SERVICE}/{offers.METHOD}"
        )(
            iter(self._outbox),
            metadata=(
                (offers.TOKEN_KEY, offer.token),
                (offers.VERSION_KEY, __version__),
                (offers.NODE_KEY, str(node_id)),
            ),
        )
        try:
            self._expect_welcome()
        except BaseException:
            self.close()
            raise
        self._beats = threading.Thread(target=self._beat, name="channel-beat", daemon=True)
        self._beats.start()

    def _expect_welcome(self) -> None:
        cancel = self._call.cancel  # type: ignore[attr-defined]
        timer = threading.Timer(self._offer.dial_timeout, cancel)
        timer.daemon = True
        timer.start()
        try:
            parcel = Assembler(0).feed(next(self._call))
        except StopIteration:
            parcel = None
        finally:
            timer.cancel()
        if parcel is None or parcel.kind != WELCOME:
            raise FrameError("whoever listens there does not speak this protocol")

    def serve(
        self,
        handle: Callable[[Message], Message],
        finish: Callable[[bool], None] | None = None,
    ) -> None:
        """Answer messages until the server says goodbye.

        Parameters
        ----------
        handle : Callable[[Message], Message]
            Answers one message.
        finish : Callable[[bool], None], optional
            Called at the goodbye, before it is answered; told whether state shall be kept.

        Raises
        ------
        ChannelError
            If the stream broke before.
        """
        assembler = Assembler(self._offer.max_bytes)
        try:
            for frame in self._call:
                parcel = assembler.feed(frame)
                if parcel is None:
                    continue
                if parcel.kind == BYE:
                    if finish is not None:
                        finish(bool(parcel.number))
                    self._outbox.finish(cut(BYE))
                    self._await_end()
                    return
                if parcel.kind != REQUEST:
                    raise FrameError(f"the server sent a frame of kind {parcel.kind}")
                number, message = parcel.number, unpack(parcel.pieces)
                del parcel, frame
                pieces = self._answer(message, handle)
                del message
                self._outbox.put(cut(REPLY, number, pieces))
                del pieces  # a large block must not outlive its round here
            raise ChannelError("the server ended the channel without a goodbye")
        except (FrameError, WireError) as error:
            raise ChannelError(f"the server broke the channel's rules: {error}") from error
        except grpc.RpcError as error:
            raise ChannelError(f"the channel broke: {_details(error)}") from error
        finally:
            self.close()

    def _answer(self, message: Message, handle: Callable[[Message], Message]) -> list[bytes]:
        pieces = pack(handle(message))
        size = total_size(pieces)
        if size > self._offer.max_bytes:
            text = (
                f"an answer of {size} bytes exceeds the channel's limit of "
                f"{self._offer.max_bytes}; set transport='messages' for this run"
            )
            pieces = pack(Message(Error(2, text), reply_to=message))
        return pieces  # type: ignore[return-value]

    def _await_end(self) -> None:
        """Let the goodbye travel: closing at once could overtake it."""
        timer = threading.Timer(5.0, self._call.cancel)  # type: ignore[attr-defined]
        timer.daemon = True
        timer.start()
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            logger.debug("the channel ended after its goodbye", exc_info=True)
        finally:
            timer.cancel()

    def _beat(self) -> None:
        while not self._stop.wait(self._offer.heartbeat):
            self._outbox.beat()

    def close(self) -> None:
        """End the stream."""
        self._stop.set()
        self._outbox.close()
        self._channel.close()


def dial(offer: Offer, node_id: int) -> Stream:
    """Open a channel.

    Raises
    ------
    ChannelError
        If that fails; says which address was tried, why it failed, and what to change.
    """
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
        except (FrameError, VerticalError) as error:
            raise ChannelError(f"cannot open a channel to {offer.address}: {error}") from error
    raise AssertionError("unreachable: the last try returns or raises")


def _details(error: grpc.RpcError) -> str:
    return " ".join(str(error.details() or error.code()).split())[:500]


def _explain(offer: Offer, code: grpc.StatusCode, details: str, certificate: bool) -> str:
    refused = (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    if code in refused:
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
