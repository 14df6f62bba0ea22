"""`LocalGrid` and `RecordingGrid`: parties in threads, Flower's grid interface, the transcript."""

import threading
import time
from itertools import islice

import pandas as pd
import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    party_app,
    step,
)
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.grids.poll import pauses
from flwr_vertical.protocol import decode
from flwr_vertical.protocol.messages import VALUES, make_message, make_request, read_envelope

HOLD = threading.Event()


class Waiter(Party):
    @step
    def wait(self, culprit=""):
        if self.name == culprit:
            HOLD.wait(20)
        return {"name": self.name}

    @step
    def leave(self):
        raise SystemExit(3)

    @step
    def keep(self):
        return {"where": self.save_output(pd.DataFrame({"x": [1.0]}, index=[self.name]))}


@pytest.fixture(autouse=True)
def _hold():
    HOLD.clear()
    yield
    HOLD.set()


@pytest.fixture
def storage():
    return MemoryStorage({})


@pytest.fixture
def grid(storage):
    app = party_app(Waiter, storage=storage)
    with LocalGrid(app, [{"party": f"p{k}"} for k in (1, 2, 3)], storage=storage) as grid:
        yield grid


def message(node_id, name="hello", sequence=0, **arguments):
    return make_message(make_request(name, sequence, arguments, mode="call"), node_id)


def greet(grid):
    return {
        reply.metadata.src_node_id: decode(reply.content, VALUES)["party"]
        for reply in grid.send_and_receive([message(n) for n in grid.get_node_ids()], timeout=10)
    }


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("flwr-vertical-node-")]


def test_it_is_a_flower_grid(grid):
    assert greet(grid) == {1: "p1", 2: "p2", 3: "p3"}
    for each in (grid, RecordingGrid(grid)):
        assert isinstance(each, Grid)
        assert list(each.get_node_ids()) == [1, 2, 3]
        assert each.run is grid.run
    assert {context.run_id for context in grid.contexts.values()} == {grid.run.run_id}
    with LocalGrid(lambda message, context: message, [{}]) as other:
        assert other.run.run_id != grid.run.run_id  # as of Flower's runs


def test_pushed_messages_return_at_once_and_replies_are_pulled_once(grid):
    greet(grid)
    started = time.monotonic()
    ids = list(grid.push_messages([message(n, "wait", 1, culprit="p2") for n in (1, 2, 3)]))
    assert time.monotonic() - started < 1
    assert len(set(ids)) == 3
    replies, deadline = [], time.monotonic() + 10
    while len(replies) < 2 and time.monotonic() < deadline:
        replies += grid.pull_messages(ids)
    assert {reply.metadata.src_node_id for reply in replies} == {1, 3}
    assert {reply.metadata.reply_to_message_id for reply in replies} == {ids[0], ids[2]}
    assert list(grid.pull_messages(ids)) == []  # nothing new, and nothing twice
    HOLD.set()
    while not replies[2:] and time.monotonic() < deadline:
        replies += grid.pull_messages(ids)
    assert decode(replies[2].content, VALUES) == {"name": "p2"}


def test_a_party_that_hangs_does_not_hold_up_the_others(grid):
    greet(grid)
    messages = [message(n, "wait", 1, culprit="p2") for n in (1, 2, 3)]
    started = time.monotonic()
    replies = list(grid.send_and_receive(messages, timeout=0.3))
    assert 0.25 < time.monotonic() - started < 5
    assert {reply.metadata.src_node_id for reply in replies} == {1, 3}
    # The others go on while it hangs; its late reply is nobody's answer any more.
    replies = list(grid.send_and_receive([message(n, "wait", 2) for n in (1, 3)], timeout=10))
    assert {reply.metadata.src_node_id for reply in replies} == {1, 3}
    HOLD.set()
    replies = list(grid.send_and_receive([message(2, "wait", 2)], timeout=10))
    assert [read_envelope(reply.content)["status"] for reply in replies] == ["ok"]
    assert not grid._replies  # the late one has not been kept for ever
    assert not grid._dropped


def test_without_a_timeout_it_waits(grid):
    greet(grid)
    threading.Timer(0.3, HOLD.set).start()
    replies = list(grid.send_and_receive([message(2, "wait", 1, culprit="p2")]))
    assert [decode(reply.content, VALUES)["name"] for reply in replies] == ["p2"]


def test_closing_ends_the_threads(grid):
    before = set(threads())  # of other tests' grids, which may be ending
    greet(grid)
    own = set(threads()) - before
    assert len(own) == 3
    assert all(thread.daemon for thread in own)
    grid.close()
    for thread in own:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in own)


def test_outputs_are_what_the_parties_saved(grid):
    greet(grid)
    assert grid.outputs() == {}
    list(grid.send_and_receive([message(n, "keep", 1) for n in (1, 3)], timeout=10))
    assert set(grid.outputs()) == {"p1", "p3"}
    assert grid.outputs()["p3"].index.tolist() == ["p3"]


def test_an_app_that_raises_becomes_flower_s_error():
    def broken(message, context):
        raise RuntimeError("no such table")

    with LocalGrid(broken, [{"party": "p1"}]) as grid:
        (reply,) = grid.send_and_receive([message(1)], timeout=10)
        assert reply.has_error()
        assert reply.error.code == 2
        assert reply.error.reason == "RuntimeError: no such table"


def test_a_party_that_exits_is_an_error_and_not_a_silence(grid):
    federation = Federation(grid, aggregation="plain", retries=1, timeout=20)
    federation.open()
    started = time.monotonic()
    with pytest.raises(PartyError, match="SystemExit"):
        federation.call("leave", parties=["p2"])
    assert time.monotonic() - started < 5
    assert federation.call("wait")["p2"] == {"name": "p2"}  # and it is still served


def test_nodes_and_messages_are_checked(grid):
    with pytest.raises(ConfigError, match="at least one node"):
        LocalGrid(None, [])
    with pytest.raises(ConfigError, match="no node 9 on this grid"):
        grid.push_messages([message(9)])


def test_a_transcript_holds_every_message_in_order(grid):
    recording = RecordingGrid(grid)
    greet(recording)
    seen = [(r.direction, r.node_id) for r in recording.transcript]
    assert seen[:3] == [("down", 1), ("down", 2), ("down", 3)]
    assert sorted(seen[3:]) == [("up", 1), ("up", 2), ("up", 3)]
    up = next(r for r in recording.transcript if (r.direction, r.node_id) == ("up", 2))
    assert decode(up.content, VALUES)["party"] == "p2"
    # Also of those that are pushed and pulled.
    ids = list(recording.push_messages([message(1)]))
    pulled, deadline = [], time.monotonic() + 10
    while not pulled and time.monotonic() < deadline:
        pulled = list(recording.pull_messages(ids))
    assert isinstance(pulled[0], Message)
    assert [(r.direction, r.node_id) for r in recording.transcript[6:]] == [("down", 1), ("up", 1)]


def test_pauses_between_looks_grow_to_the_longest():
    found = list(islice(pauses(1.0), 30))
    assert found[0] == 0.01
    assert found == sorted(found)
    assert found[-1] == 1.0
    assert sum(islice(pauses(1.0), 12)) < 3  # few looks in the first seconds
    for longest in (0.0, 0.002):  # it may be shorter than the first
        assert set(islice(pauses(longest), 5)) == {longest}
