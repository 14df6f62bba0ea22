"""The server's end of all channels: one TLS port, one stream per party."""

import logging
import threading
import time
from collections.abc import Iterator

import grpc
from flwr.app import Message

from flwr_vertical.channel.address import advertised, is_loopback, join_address, split_address
from flwr_vertical.channel.certificate import make_certificate
from flwr_vertical.channel.door import Door
from flwr_vertical.channel.frames import LARGEST_FRAME, REQUEST, cut, total_size
from flwr_vertical.channel.mailbox import LOST, RAISED, Mailbox
from flwr_vertical.channel.offer import METHOD, SERVICE, Offer
from flwr_vertical.channel.peer import Peer
from flwr_vertical.channel.threads import StreamThreads
from flwr_vertical.channel.wire import pack
from flwr_vertical.errors import ConfigError

logger = logging.getLogger("flwr_vertical")

_MAX_STREAMS = 4096
_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not shared
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]


class Endpoint:
    """Listens for parties, sends them messages and collects their replies.

    Parameters
    ----------
    bind : str, default "127.0.0.1:0"
        Where to listen; port 0 is any free one.
    address : str, optional
        Where parties dial, if that is another address.
    max_bytes : int
        Largest message either way.
    heartbeat : float
        Seconds between a party's signs of life.
    silence : float
        Seconds without any after which a party is lost.
    dial_timeout : float
        Seconds a party tries to dial.

    Attributes
    ----------
    door : Door
        Who may open a channel.
    mailbox : Mailbox
        Messages and replies.
    address : str
        Where parties dial.
    only_local : bool
        Whether only this machine can.
    lost : dict[int, str]
        Nodes whose stream ended, and why.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        address: str = "",
        *,
        max_bytes: int = 4 << 30,
        heartbeat: float = 5.0,
        silence: float = 25.0,
        dial_timeout: float = 20.0,
    ) -> None:
        self.max_bytes = max_bytes
        self.door, self.mailbox = Door(), Mailbox()
        self.lost: dict[int, str] = {}
        self._heartbeat, self._silence, self._dial_timeout = heartbeat, silence, dial_timeout
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._stop = threading.Event()
        self._threads = StreamThreads("channel-stream")
        self._server = grpc.server(
            self._threads,
            options=_OPTIONS,
            maximum_concurrent_rpcs=_MAX_STREAMS,
        )
        method = grpc.stream_stream_rpc_method_handler(self._admit)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),)
        )
        self.address, self._certificate = self._listen(bind, address)
        self._watcher = threading.Thread(target=self._watch, name="channel-watcher", daemon=True)
        self._server.start()
        self._watcher.start()

    def _listen(self, bind: str, address: str) -> tuple[str, str]:
        host, port = split_address(bind, "channel-bind")
        outside, _ = advertised(host, port, address)
        self.only_local = is_loopback(outside)
        names = {outside, "localhost"} if self.only_local else {outside}
        certificate, key = make_certificate(sorted(names))
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        try:
            port = self._server.add_secure_port(join_address(host, port), credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigError(
                f"cannot listen at channel-bind = {bind!r}: the port is in use, or the address is "
                "not this machine's; set another one in the run config, or port 0 for any free one"
            )
        return join_address(*advertised(host, port, address)), certificate.decode()

    # -- streams ---------------------------------------------------------------------------

    def invite(self, node_id: int) -> Offer:
        """Make an offer for a node; what it had before no longer counts."""
        token = self.door.invite(node_id)
        with self._lock:
            earlier = self._peers.get(node_id)
            self.lost.pop(node_id, None)
        if earlier is not None:
            earlier.cut("a new channel replaces it")
        return Offer(
            address=self.address,
            certificate=self._certificate,
            token=token,
            heartbeat=self._heartbeat,
            max_bytes=self.max_bytes,
            dial_timeout=self._dial_timeout,
        )

    def _admit(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:  # whoever sees that a node has come in finds its stream
            node_id, code, text = self.door.judge(context.invocation_metadata())
            if code is grpc.StatusCode.OK:
                peer = Peer(node_id, self.max_bytes, self.mailbox.deliver, self._on_end)
                self._peers[node_id] = peer
        if code is not grpc.StatusCode.OK:
            context.abort(code, text)
        return peer.stream(requests, context)

    def _on_end(self, peer: Peer, reason: str) -> None:
        node_id = peer.node_id
        with self._lock:
            if self._peers.get(node_id) is not peer:
                return
            del self._peers[node_id]
            self.lost[node_id] = reason or "the party said goodbye"
        if not self._stop.is_set():
            logger.warning("the channel to node %d was lost: %s", node_id, self.lost[node_id])
        self.mailbox.fail_all(node_id, self._loss(node_id))

    def _loss(self, node_id: int) -> str:
        return f"the channel to node {node_id} was lost: {self.lost.get(node_id, 'never opened')}"

    # -- messages --------------------------------------------------------------------------

    def send(self, message: Message) -> int:
        """Send a message to the node it is addressed to; return its number.

        A failure becomes an error reply, as with Flower.
        """
        node_id, number = message.metadata.dst_node_id, self.mailbox.post(message)
        pieces = pack(message)
        if (size := total_size(pieces)) > self.max_bytes:
            text = (
                f"a message of {size} bytes exceeds the channel's limit of {self.max_bytes}; "
                "set transport='messages' for this run"
            )
            self.mailbox.fail(number, RAISED, text)
            return number
        with self._lock:
            peer = self._peers.get(node_id)
        if peer is None or not peer.outbox.put(cut(REQUEST, number, pieces)):
            self.mailbox.fail(number, LOST, self._loss(node_id))
        return number

    # -- losses and the end ----------------------------------------------------------------

    def _watch(self) -> None:
        pause = min(1.0, self._silence / 4)
        last = time.monotonic()
        while not self._stop.wait(pause):
            now = time.monotonic()
            asleep, last = now - last > 3 * pause, now
            with self._lock:
                peers = list(self._peers.values())
            for peer in peers:
                if asleep:  # this process did not hear anything: it was stopped itself, or busy
                    peer.heard = now
                if (quiet := now - peer.heard) > self._silence:
                    peer.cut(
                        f"it has given no sign of life for {quiet:.0f} s: its process is stopped, "
                        "or the network is cut"
                    )

    def close(self, *, patience: float = 5.0, keep_state: bool = True) -> None:
        """Say goodbye to all parties, wait a little for their answers, and stop listening."""
        deadline = time.monotonic() + patience
        if self._stop.is_set():
            return
        self._stop.set()
        self.door.shut()
        with self._lock:
            peers = list(self._peers.values())
        for peer in peers:
            peer.say_goodbye(keep_state)
        for peer in peers:
            if not peer.done.wait(max(0.0, deadline - time.monotonic())):
                logger.warning("node %d did not answer the goodbye in time", peer.node_id)
                peer.cut("the run is over")
        # Streams that have ended still send their status; whoever dials now is cut.
        self._server.stop(grace=0.5).wait(2.0)
        self._threads.join(2.0)
        self._watcher.join(2.0)
        for peer in peers:
            peer.join(1.0)
