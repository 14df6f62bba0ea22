"""The server's end of all channels: one TLS port, one stream per party."""

import datetime
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import chain
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from flwr.app import Message

from flwr_vertical.channel.address import advertised, is_loopback, join_address, split_address
from flwr_vertical.channel.admission import Admission
from flwr_vertical.channel.frames import LARGEST_FRAME, REQUEST, WELCOME, cut, total_size
from flwr_vertical.channel.invitation import METHOD, SERVICE, Offer
from flwr_vertical.channel.mailbox import LOST, RAISED, Mailbox
from flwr_vertical.channel.session import Peer
from flwr_vertical.channel.wire import Piece, pack
from flwr_vertical.errors import ConfigError
from flwr_vertical.log import logger


class StreamThreads(Executor):
    """Runs each call in a thread of its own, which the interpreter does not wait for at its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._alive: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Start a call."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # gRPC asks the future
                future.set_exception(error)
            finally:
                with self._lock:
                    self._alive.discard(thread)

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        with self._lock:
            self._alive.add(thread)
        thread.start()
        return future

    def join(self, patience: float) -> None:
        """Wait until all calls have ended, at most some time."""
        deadline = time.monotonic() + patience
        with self._lock:
            alive = list(self._alive)
        for thread in alive:
            thread.join(max(0.0, deadline - time.monotonic()))


# Parties get this very certificate through Flower, so its dates add nothing to trust: clocks that
# are an hour apart must not end a run, nor must a party that dials again on the third day (after
# which Flower would have lost the message that opened the channel).
BACK_DATED = datetime.timedelta(hours=1)
VALID_FOR = datetime.timedelta(days=3)


def make_certificate(
    hosts: Iterable[str], now: datetime.datetime | None = None
) -> tuple[bytes, bytes]:
    """Make a self-signed certificate on P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.datetime.now(datetime.UTC)
    # A name of its own for each run: OpenSSL tells certificates apart by it.
    title = f"flwr-vertical channel {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACK_DATED)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([*map(alternative_name, hosts)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def alternative_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_MAX_STREAMS = 4096
_REPLACED = "a new channel replaces it"
_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not shared
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Whoever connects and says nothing must not use up the descriptors that parties need.
    ("grpc.server_handshake_timeout_ms", 4_000),
    ("grpc.max_connection_idle_ms", 10_000),
]


class Endpoint:
    """Listens for parties, sends them messages and collects their replies."""

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        address: str = "",
        *,
        max_bytes: int = 4 << 30,
        heartbeat: float = 5.0,
        silence: float = 25.0,
        dial_timeout: float = 20.0,
        reconnect: float = 10.0,
    ) -> None:
        self.max_bytes = max_bytes
        self.admission, self.mailbox = Admission(), Mailbox()
        self.lost: dict[int, str] = {}
        self._heartbeat, self._silence, self._dial_timeout = heartbeat, silence, dial_timeout
        self._reconnect = reconnect
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._away: dict[
            int, tuple[float, str]
        ] = {}  # until when nodes may come back; why not here
        self._unanswered: dict[int, tuple[int, list[Piece]]] = {}  # by number: node, request
        self._repeated: dict[int, int] = {}  # by number: node that was sent the request again
        self._stop = threading.Event()
        self._threads = StreamThreads("channel-stream")
        self._server = grpc.server(
            self._threads, options=_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS
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
        with self._lock:
            earlier, away = self._peers.get(node_id), node_id in self._away
        if earlier is not None:
            earlier.cut(_REPLACED)
        elif away:
            self._lose(node_id, _REPLACED)
        token = self.admission.invite(node_id)
        return Offer(
            address=self.address,
            certificate=self._certificate,
            token=token,
            heartbeat=self._heartbeat,
            max_bytes=self.max_bytes,
            dial_timeout=self._dial_timeout,
            reconnect=self._reconnect,
        )

    def _admit(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:  # whoever sees that a node has come in finds its stream
            node_id, code, text = self.admission.judge(context.invocation_metadata())
            if code is grpc.StatusCode.OK:
                peer = Peer(node_id, self.max_bytes, self._deliver, self._on_end, self._confirm)
                earlier = self._peers.get(node_id)
                self._peers[node_id] = peer
                back = self.admission.expect_back(node_id) if self._reconnect > 0 else ""
                first = chain(cut(WELCOME, 0, [back.encode()]), self._again(node_id))
                returned = self._away.pop(node_id, None) is not None or earlier is not None
                self.lost.pop(node_id, None)
        if code is not grpc.StatusCode.OK:
            context.abort(code, text)
        if earlier is not None:  # the party knew before the server that the stream was cut
            earlier.cut(_REPLACED)
        if returned:
            logger.info("node %d is back by another stream", node_id)
        return peer.stream(requests, context, first)

    def _again(self, node_id: int) -> Iterator[bytes]:
        """Return the frames of requests that a node has not answered; it knows those it has."""
        waiting = [
            (number, pieces) for number, (n, pieces) in self._unanswered.items() if n == node_id
        ]
        settled = min((number for number, _ in waiting), default=0)
        self._repeated = {k: n for k, n in self._repeated.items() if n != node_id}
        self._repeated |= {number: node_id for number, _ in waiting}
        return chain.from_iterable(
            cut(REQUEST, number, pieces, settled) for number, pieces in waiting
        )

    def _on_end(self, peer: Peer, reason: str, may_return: bool) -> None:
        node_id = peer.node_id
        with self._lock:
            if self._peers.get(node_id) is not peer:
                return
            del self._peers[node_id]
            wait = bool(reason) and may_return and self._reconnect > 0 and not self._stop.is_set()
            if wait:
                self._away[node_id] = time.monotonic() + self._reconnect, reason
        if wait:
            logger.info("the stream of node %d was cut; it may come back", node_id)
        else:
            self._lose(node_id, reason or "the party said goodbye")

    def _confirm(self, peer: Peer) -> None:
        with self._lock:
            if self._peers.get(peer.node_id) is peer:
                self.admission.confirm(peer.node_id)

    def _lose(self, node_id: int, reason: str) -> None:
        """Count a node as lost: messages to it fail, and it cannot come back by itself."""
        with self._lock:
            self.admission.bar(node_id)
            self._away.pop(node_id, None)
            self.lost[node_id] = reason
            for number in [k for k, (node, _) in self._unanswered.items() if node == node_id]:
                del self._unanswered[number]
        if not self._stop.is_set():
            logger.warning("the channel to node %d was lost: %s", node_id, reason)
        self.mailbox.fail_all(node_id, self._loss(node_id))

    def _loss(self, node_id: int) -> str:
        return f"the channel to node {node_id} was lost: {self.lost.get(node_id, 'never opened')}"

    # -- messages --------------------------------------------------------------------------

    def send(self, message: Message) -> int:
        """Send a message to the node it is addressed to; return its number."""
        # A failure becomes an error reply, as with Flower.
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
            peer, here = self._peers.get(node_id), node_id in self._peers or node_id in self._away
            if here:
                self._unanswered[number] = node_id, pieces
                settled = min(k for k, (node, _) in self._unanswered.items() if node == node_id)
        if not here:
            self.mailbox.fail(number, LOST, self._loss(node_id))
        elif peer is not None:  # what its stream takes no more, the next one gets
            peer.outbox.put(cut(REQUEST, number, pieces, settled))
        return number

    def _deliver(self, node_id: int, number: int, reply: Message) -> str:
        with self._lock:  # an answer may arrive by the old stream and by the new one
            if self._repeated.get(number) == node_id and number not in self._unanswered:
                return ""
        wrong = self.mailbox.deliver(node_id, number, reply)
        if not wrong:
            with self._lock:
                self._unanswered.pop(number, None)
        return wrong

    # -- losses and the end ----------------------------------------------------------------

    def _watch(self) -> None:
        pause = min(1.0, self._silence / 4, self._reconnect / 4 or 1.0)
        last = time.monotonic()
        while not self._stop.wait(pause):
            now = time.monotonic()
            asleep, last = now - last > 3 * pause, now
            with self._lock:
                if asleep:
                    for node_id, (_, reason) in self._away.items():
                        self._away[node_id] = now + self._reconnect, reason
                peers = list(self._peers.values())
                gone = [(n, reason) for n, (until, reason) in self._away.items() if now > until]
            for node_id, reason in gone:
                self._lose(node_id, reason)
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
        # Whoever was just cut off is about to come back, and would search for us in vain.
        while self._away and time.monotonic() < deadline - 0.6 * patience:
            time.sleep(0.05)
        self._stop.set()
        self.admission.shut()
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
