"""Who gets in: right token once, right certificate, same version; errors say what to change."""

import datetime
import logging
import re
import socket
from dataclasses import asdict, replace

import grpc
import pytest
from cryptography import x509
from flwr.app import Message

from flwr_vertical.channel import admission
from flwr_vertical.channel import endpoint as endpoints
from flwr_vertical.channel.address import advertised, split_address
from flwr_vertical.channel.client import ChannelError, dial
from flwr_vertical.channel.endpoint import Endpoint, make_certificate
from flwr_vertical.channel.frames import CHUNK, HEADER, LARGEST_FRAME, REPLY, Outbox, cut
from flwr_vertical.channel.invitation import (
    METHOD,
    NODE_KEY,
    SERVICE,
    TOKEN_KEY,
    VERSION_KEY,
    Offer,
)
from flwr_vertical.channel.wire import pack
from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.messages import make_message, make_request
from flwr_vertical.version import __version__


def refused(offer, node_id=1):
    with pytest.raises(ChannelError) as caught:
        dial(offer, node_id)
    text = str(caught.value)
    assert offer.address in text
    assert offer.token not in text
    return text


def test_a_token_lets_one_stream_in(endpoint):
    offer = endpoint.invite(1)
    stream = dial(offer, 1)
    assert "was used already" in refused(offer)
    stream.close()
    assert "was used already" in refused(offer)


def test_a_wrong_token_another_nodes_token_and_an_earlier_one_are_refused(endpoint):
    first = endpoint.invite(1)
    assert "not the one that this run gave to node 1" in refused(replace(first, token="x" * 43))
    assert "not the one that this run gave to node 2" in refused(first, node_id=2)
    endpoint.invite(2)
    assert "not the one that this run gave to node 2" in refused(first, node_id=2)
    second = endpoint.invite(1)
    assert "not the one that this run gave to node 1" in refused(first)
    dial(second, 1).close()  # refusals have not used it up


def test_who_connects_and_says_nothing_is_cut_off(monkeypatch):
    """Attack `h2_idle` of the audit: silent connections used up what a party needs to come in."""
    limits = dict(endpoints._OPTIONS)
    assert limits["grpc.server_handshake_timeout_ms"] <= 5_000
    assert limits["grpc.max_connection_idle_ms"] <= 10_000
    shorter = {"grpc.server_handshake_timeout_ms": 500, "grpc.max_connection_idle_ms": 500}
    monkeypatch.setattr(endpoints, "_OPTIONS", list((limits | shorter).items()))
    endpoint = Endpoint(dial_timeout=10.0, reconnect=0.5)
    host, port = endpoint.invite(1).address.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), 10.0) for _ in range(20)]
    try:
        assert [each.recv(1) for each in silent] == [b""] * len(silent)  # all closed by the server
        dial(endpoint.invite(1), 1).close()
    finally:
        for each in silent:
            each.close()
        endpoint.close(patience=1.0)


def test_a_revoked_token_is_refused_and_a_used_one_cannot_be_revoked(endpoint):
    offer = endpoint.invite(1)
    assert endpoint.admission.revoke(1)
    assert "was revoked: it dialled too late" in refused(offer)
    stream = dial(endpoint.invite(1), 1)
    assert not endpoint.admission.revoke(1)
    stream.close()


def test_codes_of_refusals(endpoint):
    offer = endpoint.invite(1)

    def code(**changed):
        given = {TOKEN_KEY: offer.token, VERSION_KEY: __version__, NODE_KEY: "1"} | changed
        return endpoint.admission.judge(given.items())[1]

    assert code(**{TOKEN_KEY: "no"}) is grpc.StatusCode.UNAUTHENTICATED
    assert code(**{NODE_KEY: "many"}) is grpc.StatusCode.UNAUTHENTICATED
    assert code(**{VERSION_KEY: "0"}) is grpc.StatusCode.FAILED_PRECONDITION
    assert code() is grpc.StatusCode.OK
    assert code() is grpc.StatusCode.PERMISSION_DENIED
    assert endpoint.admission.judge([])[1] is grpc.StatusCode.UNAUTHENTICATED


def test_another_certificate_is_refused_in_little_time(endpoint):
    certificate, _ = make_certificate(["127.0.0.1"])
    offer = replace(endpoint.invite(1), certificate=certificate.decode())
    assert "another server listens there" in refused(offer)


def test_a_certificate_out_of_date_says_that_clocks_may_differ(endpoint, monkeypatch):
    late = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=5)
    real = make_certificate
    monkeypatch.setattr(
        "flwr_vertical.channel.endpoint.make_certificate", lambda hosts: real(hosts, late)
    )
    other = Endpoint()
    try:
        assert "clock is off" in refused(other.invite(1))
    finally:
        other.close()


def test_certificate_is_back_dated_and_names_its_hosts():
    pem, key = make_certificate(["10.0.0.7", "fl.example.org"])
    certificate = x509.load_pem_x509_certificate(pem)
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(minutes=50)
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=2)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert b"PRIVATE KEY" in key
    assert make_certificate(["a"])[1] != key


@pytest.mark.parametrize("listens", [False, True])
def test_an_address_where_nobody_answers_is_named_with_the_setting_to_change(endpoint, listens):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        if listens:  # and says nothing
            s.listen()
        address = f"127.0.0.1:{s.getsockname()[1]}"
        text = refused(replace(endpoint.invite(1), address=address, dial_timeout=1.0))
    assert "channel-address" in text
    assert listens or "channel-bind" in text


def test_a_port_in_use_is_an_error(endpoint):
    with pytest.raises(ConfigError, match=rf"channel-bind = '{endpoint.address}': the port is in"):
        Endpoint(endpoint.address)


@pytest.mark.parametrize("text", ["", "host", "host:", ":70", "h:99999", "::1:70", "h h:1", "h:x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match=r"channel-bind = .* is no address"):
        split_address(text, "channel-bind")


def test_advertised_addresses():
    assert split_address("[::1]:70", "k") == ("::1", 70)
    assert advertised("127.0.0.1", 70, "") == ("127.0.0.1", 70)
    assert advertised("0.0.0.0", 70, "fl.example.org") == ("fl.example.org", 70)
    assert advertised("0.0.0.0", 70, "[fe80::1]") == ("fe80::1", 70)
    assert advertised("0.0.0.0", 70, "10.0.0.7:443") == ("10.0.0.7", 443)
    with pytest.raises(ConfigError, match="set channel-address='HOST:PORT'"):
        advertised("0.0.0.0", 70, "")


def test_all_interfaces_with_an_advertised_address():
    endpoint = Endpoint("0.0.0.0:0", "localhost")
    try:
        assert endpoint.address.startswith("localhost:")
        dial(endpoint.invite(1), 1).close()
    finally:
        endpoint.close()


class RawClient:
    """Sends whatever frames a test likes."""

    def __init__(self, offer, node_id=1):
        self.outbox = Outbox()
        self.channel = grpc.secure_channel(
            offer.address, grpc.ssl_channel_credentials(offer.certificate.encode())
        )
        metadata = [(TOKEN_KEY, offer.token), (VERSION_KEY, __version__), (NODE_KEY, str(node_id))]
        self.call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")(
            iter(self.outbox), metadata=metadata
        )
        next(self.call)  # the welcome

    def refusal(self, *frames):
        self.outbox.put(iter(frames))
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.call:
                pass
        self.outbox.close()
        self.channel.close()
        return caught.value.details()


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (HEADER.pack(REPLY, 1, 0, 9, 8 << 20, 0) + bytes(CHUNK), "8388608 bytes .* of 4194304"),
        (b"nonsense", "shorter than its header"),
        (HEADER.pack(REPLY, 5, 0, 1, 0, 0), "the message ends 8 bytes too early"),
    ],
)  # fmt: skip
def test_frames_against_the_rules_close_the_stream_and_name_the_reason(frame, text):
    endpoint = Endpoint(max_bytes=4 << 20)
    try:
        raw = RawClient(endpoint.invite(1))
        number = endpoint.send(make_message(make_request("x", 1, {}), 1))
        assert re.search(text, raw.refusal(frame))
        (reply,) = endpoint.mailbox.wait([number], 10)
        assert reply.error.code == 8
        assert re.search(text, reply.error.reason)
        assert "node 1" in reply.error.reason
    finally:
        endpoint.close()


def test_a_frame_larger_than_any_part_is_not_even_received(endpoint):
    raw = RawClient(endpoint.invite(1))
    frame = HEADER.pack(REPLY, 1, 0, 1, LARGEST_FRAME, 0) + bytes(LARGEST_FRAME)
    raw.refusal(frame)
    assert endpoint.mailbox.wait([endpoint.send(make_message(make_request("x", 1, {}), 1))], 10)[
        0
    ].has_error()


def test_answers_to_what_was_not_asked_close_the_stream(endpoint):
    request = make_message(make_request("x", 1, {}), 2)
    raw = RawClient(endpoint.invite(1))
    other = RawClient(endpoint.invite(2), 2)
    number = endpoint.send(request)
    forged = Message(request.content, reply_to=request)
    text = raw.refusal(*cut(REPLY, number, pack(forged)))
    assert f"answered message {number}, which it was not asked" in text
    # The right node, but as if another had spoken.
    forged.metadata.__dict__["_src_node_id"] = 1
    text = other.refusal(*cut(REPLY, number, pack(forged)))
    assert "names another node or message" in text


def test_secrets_are_in_no_log_and_no_representation(endpoint, log):
    logging.getLogger("grpc").setLevel(logging.DEBUG)
    offer = endpoint.invite(1)
    refused(replace(offer, token="y" * 43))
    stream = dial(offer, 1)
    refused(offer)
    stream.close()
    shown = log.text + repr(offer) + repr(endpoint.admission.__dict__) + repr(endpoint.__dict__)
    assert "refused a channel" in log.text
    for secret in (offer.token, "y" * 43, "PRIVATE KEY"):
        assert secret not in shown
    assert Offer(**asdict(offer)) == Offer.read(offer.records())
    assert admission.Admission().judge([])[0] == 0
