"""A party that dies, stops or hangs: an error reply that names it, not a time-out."""

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flwr_vertical.channel.endpoint import Endpoint
from flwr_vertical.protocol.messages import make_message


def request(node_id, sleep=None, size=0):
    values = ConfigRecord({"x": b"\1" * size} | ({} if sleep is None else {"sleep": sleep}))
    return make_message(RecordDict({"values": values}), node_id)


def asked(endpoint, *messages, timeout=30):
    return endpoint.mailbox.wait([endpoint.send(m) for m in messages], timeout)


def test_a_killed_process_is_noticed_at_once_and_closing_leaves_none(endpoint, party_processes):
    parties = [party_processes(endpoint, k) for k in (1, 2)]
    assert [p.said() for p in parties] == ["open", "open"]
    assert [r.has_content() for r in asked(endpoint, request(1), request(2))] == [True, True]
    threading.Timer(0.5, parties[0].process.kill).start()
    started = time.monotonic()
    lost, fine = asked(endpoint, request(1, sleep=30.0), request(2, sleep=0.1))
    assert time.monotonic() - started < 5
    assert lost.error.code == 8
    assert lost.metadata.src_node_id == 1
    assert "the channel to node 1 was lost" in lost.error.reason
    assert "process ended" in lost.error.reason
    assert fine.has_content()
    # It stays lost, at once, until it dials again; the others go on.
    again, fine = asked(endpoint, request(1), request(2))
    assert again.error.reason == lost.error.reason
    assert fine.has_content()
    parties[0] = party_processes(endpoint, 1)
    assert parties[0].said() == "open"
    assert asked(endpoint, request(1))[0].has_content()
    # Closing leaves no port and no process.
    host, port = endpoint.address.rsplit(":", 1)
    started = time.monotonic()
    endpoint.close()
    assert time.monotonic() - started < 5
    assert {p.said() for p in parties} == {"closed"}
    assert [p.process.wait(10) for p in parties] == [0, 0]
    with socket.socket() as s, pytest.raises(ConnectionRefusedError):
        s.connect((host, int(port)))
    endpoint.close()  # twice is once


def test_a_stopped_process_is_noticed_by_its_silence(party_processes):
    endpoint = Endpoint(heartbeat=0.5, silence=2.5)
    try:
        party = party_processes(endpoint, 1)
        assert party.said() == "open"
        # A long step is no silence.
        assert asked(endpoint, request(1, sleep=4.0))[0].has_content()
        os.kill(party.process.pid, signal.SIGSTOP)
        started = time.monotonic()
        (lost,) = asked(endpoint, request(1))
        assert time.monotonic() - started < 10
        assert "node 1" in lost.error.reason
        assert "no sign of life for" in lost.error.reason
        os.kill(party.process.pid, signal.SIGCONT)
        assert "error: the channel broke" in party.said()
        assert party.process.wait(10) == 0
    finally:
        endpoint.close()


def test_a_server_that_was_stopped_itself_does_not_blame_the_parties(party_threads, monkeypatch):
    endpoint = Endpoint(heartbeat=0.5, silence=2.0)
    try:
        party_threads(endpoint, 1)
        clock = time.monotonic
        monkeypatch.setattr("flwr_vertical.channel.endpoint.time.monotonic", lambda: clock() + 60)
        time.sleep(1.2)
        assert not endpoint.lost
    finally:
        endpoint.close()


def test_server_gone_ends_the_party(party_threads):
    endpoint = Endpoint(reconnect=1.0)
    party = party_threads(endpoint, 1)
    endpoint._server.stop(None).wait()
    assert party.said().startswith("error: the channel broke")
    endpoint.close(patience=0.1)


def test_closing_does_not_wait_for_a_party_that_is_busy(party_threads):
    endpoint = Endpoint()
    party_threads(endpoint, 1)
    number = endpoint.send(request(1, sleep=3.0))
    started = time.monotonic()
    endpoint.close(patience=0.2)
    assert time.monotonic() - started < 3
    assert endpoint.mailbox.wait([number], 0)[0].has_error()


def test_fifty_megabytes_travel_in_parts(endpoint, party_threads):
    party_threads(endpoint, 1)
    (reply,) = asked(endpoint, request(1, size=50_000_000))
    assert reply.content["values"]["x"] == b"\1" * 50_000_000


def test_messages_over_the_limit_are_refused_by_the_sender(party_threads):
    endpoint = Endpoint(max_bytes=100_000)
    assert endpoint._heartbeat * 4 < endpoint._silence < 29  # below half a minute by default
    try:
        party_threads(endpoint, 1, max_bytes=50_000)
        (down,) = asked(endpoint, request(1, size=100_000))
        assert down.error.code == 2
        assert "exceeds the channel's limit of 100000" in down.error.reason
        (fine,) = asked(endpoint, request(1, size=40_000))
        assert fine.has_content()
        values = ConfigRecord({"grow": 50_000})
        (up,) = asked(endpoint, make_message(RecordDict({"values": values}), 1))
        assert up.error.code == 2
        assert "exceeds the channel's limit of 50000" in up.error.reason
    finally:
        endpoint.close()


def test_a_late_reply_to_a_forgotten_message_is_dropped(endpoint, party_threads):
    party_threads(endpoint, 1)
    number = endpoint.send(request(1, sleep=0.5))
    assert endpoint.mailbox.wait([number], 0.1) == []
    endpoint.mailbox.forget([number])
    assert asked(endpoint, request(1))[0].has_content()
    assert not endpoint.mailbox._settled
    assert not endpoint.mailbox._pending
    assert not endpoint.mailbox._forgotten


def test_many_threads_may_send(endpoint, party_threads):
    party_threads(endpoint, 1)
    wrong = []

    def ask(k):
        for i in range(20):
            values = ConfigRecord({"x": np.full(k + 1, i).tobytes()})
            message = make_message(RecordDict({"values": values}), 1)
            (reply,) = endpoint.mailbox.wait([endpoint.send(message)], 30)
            if reply.content["values"] != values:
                wrong.append((k, i))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
