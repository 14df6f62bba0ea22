"""Nodes that are listed and dead, or not there at all: named by their party, in time."""

import json
import threading
import time

import numpy as np
import pandas as pd
import pytest
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from flwr_vertical import LocalGrid, MemoryStorage, Party, Table, party_app, step
from flwr_vertical.channel import ChannelGrid, handshake
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.grids.proxy import WrappingGrid, silent
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES, WHO, make_message, make_request
from flwr_vertical.server import Federation, greeting
from flwr_vertical.server.discovery import Presence

NAMES = ["bank", "court", "hospital"]
PATIENCE = 1.5


class Counter(Party):
    @step
    def rows(self):
        return {"rows": self.table.n_samples}


def local_grid(names=NAMES):
    table = Table.of(pd.DataFrame({"x": np.arange(3.0)}))
    app = party_app(Counter, storage=MemoryStorage(dict.fromkeys(NAMES, table)))
    return LocalGrid(app, [{"party": name} for name in names], max_parallel=len(names))


class LikeFlower(WrappingGrid):
    """Lists dead nodes for a while, as Flower does, and loses what is sent to them."""

    def __init__(self, grid, dead=(), unlisted=(), refused=()):
        super().__init__(grid)
        self.dead, self.unlisted, self.refused = dead, unlisted, refused
        self.sent = 0

    def get_node_ids(self):
        return [n for n in super().get_node_ids() if n not in self.unlisted]

    def silent(self, node_ids):
        return list(node_ids)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            self.sent += 1
            if node_id in self.refused:
                numbers.append(None)
            elif node_id in self.dead:
                numbers.append(f"lost-{self.sent}")
            else:
                numbers += self._grid.push_messages([message])
        return numbers

    def pull_messages(self, message_ids):
        assert None not in message_ids, "Flower's own grid raises a TypeError"
        return self._grid.pull_messages([m for m in message_ids if "lost" not in m])

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("Flower's own grid would wait three seconds between looks")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(greeting, "_LEAST", PATIENCE)


def opened(grid, **options):
    federation = Federation(
        grid, aggregation="plain", **{"timeout": 60.0, "retries": 2, "patience": PATIENCE} | options
    )
    federation.open()
    return federation


def fails(error, grid, **options):
    """Return what the error says, after no more than the patience and some time to compute."""
    started = time.monotonic()
    with pytest.raises(error) as caught:
        opened(grid, **options)
    assert time.monotonic() - started < PATIENCE + 3.0
    return caught.value


@pytest.mark.parametrize("transport", ["messages", "auto"])
def test_a_dead_node_is_named_within_the_patience(transport):
    with local_grid() as inner:
        grid = LikeFlower(inner, dead={3})
        presence = Presence(PATIENCE, NAMES)
        with ChannelGrid(grid, transport=transport, timeout=1.0) as channels:
            error = fails(PartyError, channels, parties=NAMES, ready_by=presence.until)
        assert error.party == "hospital"
        assert "no answer within" in error.cause
        assert "look at its SuperNode" in error.cause
        assert "of the parties, ['hospital'] have not answered" in error.cause


@pytest.mark.parametrize("dead", [(), {4}], ids=["all alive", "the last is late"])
def test_two_nodes_of_one_name_are_told_although_the_patience_ends(dead):
    with local_grid(["bank", "bank", "court", "hospital"]) as inner:
        grid = LikeFlower(inner, dead=dead)
        with ChannelGrid(grid, timeout=1.0, enough=3) as channels:
            error = fails(ConfigError, channels, parties=NAMES, ready_by=time.monotonic())
        assert "two nodes call themselves 'bank'; give each SuperNode its own" in str(error)


def test_a_dead_node_is_named_where_channels_are_a_must():
    with local_grid() as inner:
        presence = Presence(PATIENCE, NAMES)
        grid = ChannelGrid(
            LikeFlower(inner, dead={3}),
            transport="channel",
            timeout=0.5,
            names=presence.names_of_silent,
        )
        with pytest.raises(ConfigError) as caught, grid:
            pass
        assert "no channel to node 3 (which must be party 'hospital'): it has not dialled" in str(
            caught.value
        )


def test_a_node_that_flower_strikes_off_its_list_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(handshake, "_LISTED_EVERY", 0.2)
    with local_grid() as inner:
        inside = LikeFlower(inner, dead={3})
        presence = Presence(60.0, NAMES)
        threading.Timer(0.5, lambda: setattr(inside, "unlisted", {3})).start()
        started = time.monotonic()
        grid = ChannelGrid(inside, transport="channel", names=presence.names_of_silent)
        with pytest.raises(ConfigError, match=r"party 'hospital'.*no longer lists it"), grid:
            pass
        assert time.monotonic() - started < 10


def test_without_a_list_of_parties_the_last_run_names_the_dead_node(tmp_path):
    path = tmp_path / "node-names.json"
    with local_grid() as inner:
        with ChannelGrid(LikeFlower(inner), transport="messages") as grid:
            assert opened(grid, node_names=path, min_nodes=3).parties == NAMES
        assert json.loads(path.read_text())["nodes"] == {"1": "bank", "2": "court", "3": "hospital"}
        assert path.stat().st_mode & 0o777 == 0o600
        with ChannelGrid(LikeFlower(inner, dead={2}), transport="messages") as grid:
            error = fails(PartyError, grid, node_names=path, min_nodes=3)
    assert error.party == "court"
    assert "node 2 was this party in the last run" in error.cause


@pytest.mark.parametrize("content", ["", "[]", '{"nodes": {"x": 1}}', '{"nodes": 3}'])
def test_a_damaged_file_of_names_is_as_good_as_none(tmp_path, content):
    path = tmp_path / "node-names.json"
    path.write_text(content)
    assert Presence(1.0, path=path).name(3) == "node 3"


def test_nodes_that_are_not_there_are_named_by_the_list_or_the_last_run(tmp_path):
    path = tmp_path / "node-names.json"
    with local_grid() as inner:
        text = str(fails(ConfigError, LikeFlower(inner, unlisted={1}), parties=NAMES))
        assert "2 of 3 nodes are connected" in text
        assert "start the missing SuperNodes (party 'bank' is absent)" in text
        opened(inner, node_names=path)
        grid = LikeFlower(inner, unlisted={1, 3})
        text = str(fails(ConfigError, grid, min_nodes=3, node_names=path))
    assert "1 of 3 nodes" in text
    assert "(party 'bank', party 'hospital' are absent)" in text


def test_a_node_that_flower_refuses_is_an_error_at_once_in_any_round():
    with local_grid() as inner:
        inside = LikeFlower(inner)
        with ChannelGrid(inside, transport="messages") as grid:
            federation = opened(grid, parties=NAMES)
            assert federation.call("rows")["court"] == {"rows": 3}
            inside.refused = {2}
            with pytest.raises(PartyError, match=r"'court'.*is not connected") as caught:
                federation.call("rows")
    assert "after 3 tries" in caught.value.cause


def test_asking_for_a_name_begins_nothing():
    with local_grid() as inner:
        federation = opened(inner)
        before = {n: bytes(str(c.state), "utf8") for n, c in inner.contexts.items()}
        replies = inner.send_and_receive(
            [make_message(make_request(WHO, 0, {}), n) for n in inner.get_node_ids()], timeout=10
        )
        assert sorted(decode(r.content, VALUES)["party"] for r in replies) == NAMES
        assert {n: bytes(str(c.state), "utf8") for n, c in inner.contexts.items()} == before
        assert federation.call("rows")["bank"] == {"rows": 3}


def test_nodes_in_this_process_are_not_bound_by_the_patience():
    """They cannot be dead, however slow they are: the time of a round holds for them."""
    with local_grid() as inner:
        presence = Presence(0.0)
        assert opened(inner, ready_by=presence.until).parties == NAMES


def test_only_nodes_that_can_die_unseen_are_silent():
    simulated = InMemoryGrid.__new__(InMemoryGrid)  # its nodes are actors of Flower's simulation
    assert silent(simulated, [1, 2]) == []
    assert silent(HttpGrid.__new__(HttpGrid), [1, 2]) == [1, 2]
    assert ChannelGrid(simulated).silent([1]) == []
    assert ChannelGrid(HttpGrid.__new__(HttpGrid)).silent([1]) == [1]
