"""Runs that are broken off, resumed and repaired, over a grid that fails on demand."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Error, Message, RecordDict

from flwr_vertical import LocalGrid, MemoryStorage, RecordingGrid, Table, party_app
from flwr_vertical.alignment import steps as aligning
from flwr_vertical.protocol.messages import read_envelope
from flwr_vertical.server import journal
from strategies.fknn import FKNN
from strategies.vfem import VFEM
from tests.kit.identities import identities, pins
from tests.kit.rounds import Rounds

IDS = [f"s{i:02}" for i in range(40)]


class ServerKilled(BaseException):
    """As if by a signal: nothing of the library catches it."""


def data():
    rng = np.random.default_rng(5)
    bank = pd.DataFrame(rng.normal(size=(40, 2)), index=IDS, columns=["a", "b"])
    court = pd.DataFrame(rng.normal(size=(40, 2)), index=IDS, columns=["c", "d"])
    labels = 1 + bank["a"] - court["c"] + rng.normal(scale=0.3, size=40)
    return {"bank": bank[:32], "court": court[6:]}, labels


def with_holes():
    tables, _ = data()
    for k, table in enumerate(tables.values()):
        table.iloc[3 + k :: 6, k] = np.nan
    return tables, None


METHODS = {
    "rounds": (Rounds, data),
    "moments": (VFEM, data),
    "fknn": (lambda: FKNN(n_neighbors=2, block_pairs=120), with_holes),
}


class FaultyGrid(RecordingGrid):
    """Kills server or party at a given round; rounds are counted from 1, greetings by `open`
    too.
    """

    def __init__(self, grid, app, die_before=None, die_after=None, lose=None):
        super().__init__(grid)
        self.local, self.app = grid, app
        self.die_before, self.die_after = die_before, die_after
        self.lose = dict(lose or {})
        self.rounds = 0
        self.victim = 2
        self.gone = set()

    def send_and_receive(self, messages, *, timeout=None):
        self.rounds += 1
        if self.rounds == self.die_before:
            raise ServerKilled
        sent = list(messages)
        fate = self.lose.pop(self.rounds, "")
        if fate == "before":
            self.end_process()
        reached = [
            m
            for m in sent
            if m.metadata.dst_node_id not in self.gone
            and not (fate in ("before", "gone") and m.metadata.dst_node_id == self.victim)
        ]
        replies = list(super().send_and_receive(reached, timeout=timeout))
        if self.rounds == self.die_after:
            raise ServerKilled
        for m in sent:
            if m not in reached or (fate and m.metadata.dst_node_id == self.victim):
                replies = [r for r in replies if r.metadata.src_node_id != m.metadata.dst_node_id]
                if fate != "lost":
                    replies.append(Message(Error(code=8, reason="it crashed"), reply_to=m))
        if fate in ("after", "moved"):
            self.end_process(moved=fate == "moved")
        if fate == "gone":
            self.end_process(moved=True, hidden=True)
        return replies

    def end_process(self, moved=False, hidden=False):
        """Forget all that the victim's process and its SuperNode knew."""
        old = self.local.contexts[self.victim]
        self.app.forget()
        node_id = max(self.local.contexts) + 1 if moved else self.victim
        fresh = Context(1, node_id, old.node_config, RecordDict(), old.run_config)
        if moved:
            self.gone.add(self.victim)
            self.victim = node_id
            self.local.contexts[node_id] = fresh
        else:  # a LocalGrid's thread holds on to the context
            old.state.clear()
        if hidden:
            self.gone.add(node_id)

    def get_node_ids(self):
        return [n for n in super().get_node_ids() if n not in self.gone]


class App:
    """A party app whose process can end."""

    def __init__(self, strategy, storage):
        protocol = strategy.protocol_of_run()
        self.make = lambda: party_app(
            strategy.party, arbiter=strategy.arbiter, storage=storage, protocol=protocol
        )
        self.forget()

    def forget(self):
        self.app = self.make()

    def __call__(self, message, context):
        return self.app(message, context)


class Place:
    """The disks of the server and of all parties, and runs on them."""

    def __init__(self, folder, method="rounds", mode="masked", **start):
        self.folder, self.server = folder, folder / "server" / "night"
        self.strategy, data = METHODS[method]
        self.tables, self.labels = data()
        self.mode, self.start, self.name = mode, start, "night"
        self.configs, self.outputs = {}, {}
        self.transcript = []
        if mode == "ckks":
            pytest.importorskip("tenseal")

    def run(self, resume=False, checkpoint=True, strategy=None, run_id=1, save=None, **faults):
        strategy = strategy or self.strategy()
        storage = MemoryStorage({n: Table.of(t) for n, t in self.tables.items()})
        storage.outputs = self.outputs  # on the parties' disks, so to speak
        nodes = [{"party": name, "exchanges": "sums", "min-rows": 10} for name in self.tables]
        if self.mode == "ckks":
            nodes.append({"role": "arbiter"})
        for node in nodes:
            node["output"] = str(self.folder / node.get("party", "arbiter"))
            node.update(self.configs.get(node.get("party", "arbiter"), {}))
        app = App(strategy, storage)
        options = {
            "labels": self.labels,
            "aggregation": self.mode,
            "alignment": "plain",
            "patience": 30.0,
            "timeout": 30,
            "retries": 2,
            "parties": list(self.tables),
            "progress": False,
        } | self.start
        with LocalGrid(app, nodes, {"run-name": self.name}, storage=storage) as local:
            for context in local.contexts.values():
                context.run_id = run_id
            grid = FaultyGrid(local, app, **faults)
            try:
                result = strategy.start(
                    grid=grid,
                    checkpoint=self.server if checkpoint else None,
                    resume=resume,
                    save=save,
                    **options,
                )
            finally:
                self.transcript += grid.transcript
                self.rounds = grid.rounds
            outcome = dict(local.outputs())
        return SimpleNamespace(result=result, tables=outcome, sent=sent(grid.transcript))

    def broken(self, error=ServerKilled, **options):
        """Run, and be killed on the way."""
        with pytest.raises(error) as caught:
            self.run(**options)
        return caught.value

    def files(self):
        return sorted(p for p in self.folder.rglob("*") if p.is_file())

    @property
    def journal(self):
        return self.server / journal.FILE_NAME

    def checkpoint(self, name):
        return self.folder / name / "night" / ".checkpoint" / f"{name}.party"


def sent(transcript):
    return sum(record.direction == "down" for record in transcript)


def resuming(transcript):
    """Count the resuming greetings."""
    down = [read_envelope(r.content) for r in transcript if r.direction == "down"]
    return sum(bool(envelope.get("resume")) for envelope in down)


def steady(monkeypatch):
    """Have every run draw the same nonces and orders, so that results can be equal in all bits."""

    def draw(count):
        return hashlib.shake_256(b"always").digest(count)

    def order(count, random=draw):
        return secret_order(count, random)

    secret_order = aligning.secret_order
    monkeypatch.setattr(aligning, "secret_order", order)
    monkeypatch.setattr(journal, "secrets", SimpleNamespace(token_bytes=draw))


def assert_same(one, other, exact=True):
    """Compare what two runs gave."""
    compare = np.testing.assert_array_equal if exact else close
    if one.result.coefficients is not None:
        left, right = one.result.coefficients, other.result.coefficients
        assert left.index.equals(right.index)
        compare(left.to_numpy(dtype=float), right.to_numpy(dtype=float))
        if exact:
            assert one.result.metrics == other.result.metrics
            assert one.result.history == other.result.history
    assert set(one.tables) == set(other.tables)
    for name, table in one.tables.items():
        assert [*table.columns] == [*other.tables[name].columns]
        compare(table.to_numpy(), other.tables[name].to_numpy())
    np.testing.assert_array_equal(one.result.mask, other.result.mask)


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def identified(place):
    """Have every node of a place sign, and every party pin all others."""
    everyone = [*place.tables, *(["arbiter"] if place.mode == "ckks" else [])]
    place.folder.mkdir(exist_ok=True)
    identities(place.folder, [f"{name}-other" for name in everyone])
    people = identities(place.folder, everyone)
    for name in everyone:
        place.configs[name] = {"identity-key": people[name][0]}
        if name != "arbiter":
            place.configs[name] |= {"pin-all": True, **pins(people, name)}
    return place
