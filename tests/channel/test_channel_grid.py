"""`ChannelGrid` over LocalGrid: same numbers, fallback, refusals, nothing left behind."""

import threading
import time
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from channel_runs import echo_grid
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_vertical import Federation, LocalGrid, MemoryStorage, RecordingGrid, Table, party_app
from flwr_vertical.channel import ChannelClientApp, ChannelGrid, app, handshake
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.protocol.messages import make_message
from flwr_vertical.version import __version__
from tests.kit.resuming import data
from tests.kit.rounds import Rounds


def federation(grid, n=3, mode="plain", **kwargs):
    opened = Federation(grid, aggregation=mode, min_nodes=n, retries=0, **kwargs)
    opened.open()
    return opened


@pytest.mark.parametrize("transport", ["channel", "messages", "auto"])
def test_a_run_gives_the_same_numbers(transport):
    tables, labels = data()
    storage = MemoryStorage({name: Table.of(frame) for name, frame in tables.items()})
    nodes = [{"party": name, "exchanges": "sums", "min-rows": 10} for name in tables]
    results, app = [], party_app(Rounds.party, storage=storage)
    for channels in (False, True):
        with LocalGrid(app, nodes, storage=storage) as inner:
            grid = ChannelGrid(inner, transport=transport) if channels else nullcontext(inner)
            with grid as carrier:
                options = {"alignment": "plain", "min_nodes": len(nodes), "labels": labels}
                results.append(Rounds().start(grid=carrier, **options))
                assert not channels or len(carrier.channels) == 2 * (transport != "messages")
    left, right = results
    pd.testing.assert_frame_equal(left.coefficients, right.coefficients, check_exact=True)
    # One ledger: the same rounds and bytes, however they travelled.
    columns = ["round", "step", "party", "bytes_down", "bytes_up", "values_up"]
    left, right = (result.ledger.to_frame() for result in results)
    pd.testing.assert_frame_equal(left[columns], right[columns])


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_rounds_sums_state_and_errors(mode):
    with echo_grid() as inner, ChannelGrid(inner, transport="channel") as grid:
        assert grid.channels == {1, 2, 3}
        rounds = federation(grid, mode=mode)
        base = np.arange(5.0)
        np.testing.assert_allclose(rounds.sum("total", {"base": base})["base"], 3 * base)
        assert [rounds.call("count")["p2"]["count"] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(PartyError, match=r"party 'p1' failed in step 'fail': .*on fire"):
            rounds.call("fail")
        assert rounds.call("count")["p3"]["count"] == 4
    # Flower's own state has it, too: messages go on where the channel ended.
    time.sleep(0.2)
    assert federation(inner).call("count")["p1"]["count"] == 1
    assert inner.contexts[2].state


def test_state_of_a_channel_goes_on_by_messages():
    with echo_grid() as inner:
        with ChannelGrid(inner, transport="channel") as grid:
            rounds = federation(grid)
            rounds.call("count")
        rounds.grid = inner
        assert rounds.call("count")["p1"]["count"] == 2
        # The closed grid passes messages on.
        rounds.grid = grid
        assert rounds.call("count")["p1"]["count"] == 3


def test_replies_look_like_flowers():
    with echo_grid() as inner, ChannelGrid(inner, transport="channel") as grid:
        federation(grid)
        message = make_message(RecordDict(), 2)
        (number,) = grid.push_messages([message])
        assert number == message.metadata.message_id
        assert list(grid.pull_messages(["other"])) == []
        deadline = time.monotonic() + 10
        while not (replies := list(grid.pull_messages([number]))):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert replies[0].metadata.reply_to_message_id == number
        assert replies[0].metadata.src_node_id == 2
        assert list(grid.pull_messages([number])) == []
        assert list(grid.get_node_ids()) == [1, 2, 3]
        assert [node.node_id for node in grid.get_nodes()] == [1, 2, 3]
        assert grid.run is inner.run


def test_a_slow_party_costs_no_more_than_the_timeout():
    with echo_grid() as inner, ChannelGrid(inner, transport="channel") as grid:
        rounds = federation(grid, timeout=0.5)
        started = time.monotonic()
        with pytest.raises(PartyError, match=r"no answer within 0\.5 s"):
            rounds.call("nap", {"seconds": 2.0}, parties=["p2"])
        assert time.monotonic() - started < 2
        # What comes late is not taken for another answer.
        rounds.timeout = 30.0
        assert rounds.call("count")["p2"]["count"] == 1


class Mixed:
    """Holds back the message that opens a channel, at node 2."""

    def __init__(self, monkeypatch):
        self.release, self.answers = threading.Event(), []
        original = ChannelClientApp.__call__

        def answer(app, message, context):
            opening = message.metadata.message_type == "query.channel"
            if opening and context.node_id == 2:
                self.release.wait(30)
            reply = original(app, message, context)
            if opening:
                self.answers.append(dict(reply.content["flwr-vertical.channel"]))
            return reply

        monkeypatch.setattr(ChannelClientApp, "__call__", answer)


@pytest.fixture
def mixed(monkeypatch):
    hook = Mixed(monkeypatch)
    yield hook
    hook.release.set()


def test_a_late_dial_after_the_fallback_is_refused_and_does_not_hang(mixed, log):
    with echo_grid() as inner:
        with ChannelGrid(inner, transport="auto", timeout=1.0) as grid:
            assert grid.channels == {1, 3}
            assert log.text.count("rounds go by Flower's messages") == 1
            assert "node 2: it has not dialled within channel-timeout = 1 s" in log.text
            assert "channel-bind='0.0.0.0:PORT'" in log.text
            threading.Timer(0.3, mixed.release.set).start()
            rounds = federation(grid, timeout=20.0)
            assert [a["count"] for a in rounds.call("count").values()] == [1, 1, 1]
            assert [a["count"] for a in rounds.call("count").values()] == [2, 2, 2]
            assert "was revoked" in mixed.answers[0]["reason"]
        assert rounds.call("count")["p2"]["count"] == 3


def test_transport_channel_raises_where_auto_falls_back(mixed):
    with echo_grid() as inner:
        grid = ChannelGrid(inner, transport="channel", timeout=0.5)
        with pytest.raises(ConfigError) as caught, grid:
            pass
        text = str(caught.value)
        assert "node 2: it has not dialled within channel-timeout = 0.5 s" in text
        assert "127.0.0.1:" in text
        assert "channel-address" in text
        assert grid.channels == set()
        mixed.release.set()


def test_an_unreachable_advertised_address_is_an_error_before_the_timeout():
    with echo_grid() as inner:
        started = time.monotonic()
        grid = ChannelGrid(inner, transport="channel", address="127.0.0.1:9", timeout=60.0)
        with pytest.raises(ConfigError) as caught, grid:
            pass
        assert time.monotonic() - started < 15
        text = str(caught.value)
        for word in ("node 1", "node 2", "node 3", "127.0.0.1:9", "channel-address"):
            assert word in text
        # By messages, the same federation works.
        with ChannelGrid(inner, address="127.0.0.1:9") as grid:
            assert grid.channels == set()
            assert federation(grid).call("count")["p1"]["count"] == 1


def test_an_app_that_knows_no_channels_is_served_by_messages(log):
    plain = ClientApp()

    @plain.query("step")
    def double(message, context):
        x = message.content["values"]["x"]
        return Message(RecordDict({"values": ConfigRecord({"x": 2 * x})}), reply_to=message)

    with echo_grid(2, app=plain) as inner, ChannelGrid(inner, timeout=30.0) as grid:
        assert grid.channels == set()
        assert "error 2" in log.text
        content = RecordDict({"values": ConfigRecord({"x": 4})})
        (reply,) = grid.send_and_receive([make_message(content, 2)], timeout=10)
        assert reply.content["values"]["x"] == 8


def test_parties_of_another_version_are_refused_with_both_versions(monkeypatch, log):
    monkeypatch.setattr("flwr_vertical.channel.client.__version__", "0.0.9")
    monkeypatch.setattr("flwr_vertical.node.introduction.__version__", "0.0.9")
    with echo_grid(2) as inner:
        with ChannelGrid(inner) as grid:
            assert grid.channels == set()
            said = f"has flwr-vertical {__version__}, node 1 has 0.0.9; install the same version"
            assert said in log.text
            with pytest.raises(ConfigError) as caught:
                federation(grid, 2)
        text = str(caught.value)
        assert (
            f"the server has flwr-vertical {__version__}, but 'p1' has 0.0.9, 'p2' has 0.0.9"
            in text
        )
        with pytest.raises(ConfigError, match=r"node 1 has 0\.0\.9"):
            ChannelGrid(inner, transport="channel").__enter__()


def test_any_flower_app_can_have_channels():
    other = ChannelClientApp()

    @other.query("step")
    def double(message, context):
        x = message.content["values"]["x"]
        if x < 0:
            raise SystemExit("below zero")
        return Message(RecordDict({"values": ConfigRecord({"x": 2 * x})}), reply_to=message)

    with echo_grid(2, app=other) as inner, ChannelGrid(inner, transport="channel") as grid:
        messages = [
            make_message(RecordDict({"values": ConfigRecord({"x": x})}), node)
            for node, x in ((1, 4), (2, -1))
        ]
        replies = {r.metadata.src_node_id: r for r in grid.send_and_receive(messages, timeout=10)}
        assert replies[1].content["values"]["x"] == 8
        assert "below zero" in replies[2].error.reason


@pytest.fixture
def streams(monkeypatch):
    """Streams that nodes dial, by node."""
    found, real = {}, app.dial

    def keep(offer, node_id):
        found[node_id] = real(offer, node_id)
        return found[node_id]

    monkeypatch.setattr(app, "dial", keep)
    return found


def test_a_lost_channel_is_an_error_reply_until_it_is_opened_again(streams):
    with echo_grid() as inner, ChannelGrid(inner, transport="channel", reconnect=0) as grid:
        rounds = federation(grid)
        rounds.call("count")
        streams[2]._current._call.cancel()
        with pytest.raises(PartyError, match=r"party 'p2' failed .* channel to node 2 was lost"):
            rounds.call("count")
        with pytest.raises(PartyError, match=r"party 'p2' failed .* channel to node 2 was lost"):
            rounds.call("count")
        deadline = time.monotonic() + 20
        while grid.reopen([1, 2]) != [1, 2]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert {a["count"] for a in rounds.call("count").values()} == {2, 4}


class Killed(RecordingGrid):
    """Lists a node that was killed, and reports that it is not there, as Flower does."""

    def __init__(self, grid):
        super().__init__(grid)
        self.dead, self.unanswered = False, {}

    def push_messages(self, messages):
        sent = list(messages)
        gone = [m for m in sent if self.dead and m.metadata.dst_node_id == 2]
        for m in gone:
            number = f"to the dead {len(self.unanswered)}"
            m.metadata.__dict__["_message_id"] = number
            self.unanswered[number] = m
        living = [m for m in sent if m not in gone]
        ids = dict(zip(map(id, living), super().push_messages(living), strict=True))
        return [ids.get(id(m)) or m.metadata.message_id for m in sent]

    def pull_messages(self, message_ids):
        asked = set(message_ids)
        absent = Error(code=5, reason="Node Unavailable")
        gone = [Message(absent, reply_to=self.unanswered[k]) for k in asked & {*self.unanswered}]
        return [*super().pull_messages(asked - {*self.unanswered}), *gone]


def test_a_killed_node_that_comes_back_under_its_id_has_a_channel_again(streams):
    with echo_grid() as inner:
        killed = Killed(inner)
        with ChannelGrid(killed, transport="auto", reconnect=0) as grid:
            rounds = federation(grid)
            killed.dead = True
            streams[2]._current._call.cancel()
            with pytest.raises(PartyError, match="channel to node 2 was lost"):
                rounds.call("count")
            for _ in range(3):
                assert grid.reopen([1, 2]) == [1]
            assert killed.unanswered
            killed.dead = False
            deadline = time.monotonic() + 20
            while grid.reopen([1, 2]) != [1, 2]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert grid.channels == {1, 2, 3}


def test_sixteen_channels_open_and_close_in_time():
    with echo_grid(16) as inner:
        started = time.monotonic()
        with ChannelGrid(inner, transport="channel") as grid:
            assert time.monotonic() - started < 20
            assert len(grid.channels) == 16
            assert len(federation(grid, 16).call("count")) == 16
            started = time.monotonic()
        assert time.monotonic() - started < 5


def test_nodes_that_connect_later_are_invited_then():
    with echo_grid() as inner:
        recording = RecordingGrid(inner)
        late = [1, 2]
        recording.get_node_ids = lambda: list(late)
        with ChannelGrid(recording, transport="channel") as grid:
            assert grid.channels == {1, 2}
            late.append(3)
            federation(grid)
            assert grid.channels == {1, 2, 3}
        assert len(recording.transcript) == 3


def test_by_messages_nothing_is_opened():
    with echo_grid() as inner:
        with ChannelGrid(inner, transport="messages") as grid:
            assert grid.address is None
            federation(grid)
            assert not [t for t in threading.enumerate() if "channel" in t.name]
        with pytest.raises(ConfigError, match="unknown transport 'pigeon'"):
            ChannelGrid(inner, transport="pigeon")
        with pytest.raises(ConfigError, match=r"channel-timeout = 0\.0"):
            ChannelGrid(inner, timeout=0.0)


class Crowded(RecordingGrid):
    """Lists a node whose machine has died: what is sent to it gets no answer."""

    dead = 99

    def get_node_ids(self):
        return [*super().get_node_ids(), self.dead]

    def push_messages(self, messages):
        sent = list(messages)
        living = [m for m in sent if m.metadata.dst_node_id != self.dead]
        ids = dict(zip(map(id, living), super().push_messages(living), strict=True))
        return [ids.get(id(m), f"to the dead {k}") for k, m in enumerate(sent)]


@pytest.mark.parametrize("transport", ["auto", "channel"])
def test_a_dead_node_holds_nobody_up_where_enough_have_dialled(monkeypatch, transport):
    monkeypatch.setattr(handshake, "_GRACE", 0.3)
    with (
        echo_grid() as inner,
        ChannelGrid(Crowded(inner), transport=transport, timeout=600.0, enough=3) as grid,
    ):
        assert grid.channels == {1, 2, 3}
        rounds = federation(grid, parties=["p1", "p2", "p3"], timeout=600.0)
        assert rounds.parties == ["p1", "p2", "p3"]
        assert rounds.call("count")["p2"]["count"] == 1


def test_a_dead_node_is_waited_for_where_it_may_be_needed():
    with echo_grid() as inner, ChannelGrid(Crowded(inner), timeout=1.0) as grid:
        assert grid.channels == {1, 2, 3}
        assert grid.reopen([1, 99]) == [1, 99]  # by Flower's messages from now on
