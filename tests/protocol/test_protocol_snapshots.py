"""A training loop with snapshots: whoever is killed, and whenever, the numbers stay the same."""

import itertools
import shutil

import numpy as np
import pytest
from resuming import ServerKilled, identified
from training import (
    STEPS,
    Momentum,
    NumpyHalf,
    TorchTrainer,
    Trainer,
    TrainingPlace,
    assert_same_model,
)

from flwr_vertical import LocalGrid, MemoryStorage, Table, party_app, step
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.errors import CodecError, ConfigError, PartyError, ProtocolError
from flwr_vertical.node.state import State
from flwr_vertical.protocol.declaration import FACTS, Protocol, Repeat, Round
from flwr_vertical.protocol.messages import SNAPSHOT, read_envelope
from flwr_vertical.server.journal import Journal
from flwr_vertical.server.snapshots import ServerSnapshots

EVERY = 5
# Greeting and alignment, preparation and the snapshot it begins with, then two rounds a step.
FIRST = 5


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return TrainingPlace(tmp_path_factory.mktemp("unbroken")).plain()


@pytest.mark.parametrize(
    ("strategy", "mode", "every"),
    [(Trainer, "plain", 1), (Trainer, "masked", 5), (TorchTrainer, "masked", 5),
     pytest.param(Trainer, "masked", 100, marks=pytest.mark.slow)],
)  # fmt: skip
def test_snapshots_change_no_number(tmp_path, strategy, mode, every):
    if strategy is TorchTrainer:
        pytest.importorskip("torch")
    without = TrainingPlace(tmp_path / "without", mode, strategy).plain()
    place = TrainingPlace(tmp_path / "with", mode, strategy, every)
    found = place.run()
    assert_same_model(found, without)
    assert place.files() == []
    steps = found.result.ledger.to_frame()["step"].value_counts()
    snapshots = 1 + (STEPS - 1) // every + 1  # the first, every so many steps, the last
    assert steps[SNAPSHOT] == 2 * snapshots
    assert steps["forward"] == 2 * STEPS
    # Per step as well, where nobody asks for snapshots.
    place.start["checkpoint_every"] = None
    assert_same_model(place.run(), without)


def test_two_loops_and_a_server_killed_again_and_again(tmp_path):
    """Rounds between and after loops are replayed; of a loop that is over, its end."""

    def make():
        return Trainer(steps=7, loops=2)

    expected = TrainingPlace(tmp_path / "plain", strategy=make).plain()
    # Every life takes a few rounds more than the one before.
    place, lives = TrainingPlace(tmp_path / "lives", strategy=make, every=3), 0
    while True:
        try:
            found = place.run(resume=lives > 0, run_id=1 + lives, die_after=12)
            break
        except ServerKilled:
            lives += 1
            assert lives < 20
    assert lives > 2
    assert_same_model(found, expected)
    assert place.files() == []


def test_a_loop_within_a_loop(tmp_path):
    """The outer one's snapshots count."""

    class Nested(Trainer):
        def run(self, federation, alignment, result, progress):
            federation.call("prepare")
            head = Momentum(3)

            def inner(i):
                head.move(federation.sum("forward", {"batch": np.arange(4)})["hidden"].mean(axis=0))
                result.history.append({"w": head.w.tolist()})

            live = {"head": head, "history": result.history}
            federation.loop(5, lambda i: federation.loop(3, inner, live), live)

    expected = TrainingPlace(tmp_path / "a", strategy=Nested).plain()
    place = TrainingPlace(tmp_path / "b", strategy=Nested, every=2)
    place.broken(die_after=14)
    found = place.run(resume=True)
    assert found.result.history == expected.result.history
    assert len(found.result.history) == 15
    steps = found.result.ledger.to_frame()["step"].value_counts()
    assert steps[SNAPSHOT] == 2 * 4


def test_a_loop_that_ends_by_itself(tmp_path):
    class Early(Trainer):
        def run(self, federation, alignment, result, progress):
            federation.call("prepare")
            head = Momentum(3)

            def body(i):
                head.move(federation.sum("forward", {"batch": np.arange(4)})["hidden"].mean(axis=0))
                result.history.append({"step": i})
                return i == 7

            federation.loop(None, body, {"head": head, "history": result.history})
            result.model = head.w

    expected = TrainingPlace(tmp_path / "a", strategy=Early).plain()
    assert [row["step"] for row in expected.result.history] == [*range(8)]
    place = TrainingPlace(tmp_path / "b", strategy=Early, every=3)
    place.broken(die_after=11)
    found = place.run(resume=True)
    assert found.result.history == expected.result.history
    np.testing.assert_array_equal(found.result.model, expected.result.model)


def test_over_live_channels(tmp_path, expected):
    """As on nodes of Flower: the process that serves the stream holds the model."""
    place = TrainingPlace(tmp_path)
    storage = MemoryStorage({n: Table.of(t) for n, t in place.tables.items()})
    nodes = [{"party": n, "output": str(tmp_path / n)} for n in place.tables]
    app = party_app(NumpyHalf, storage=storage)
    with (
        LocalGrid(app, nodes, {"run-name": "night"}, storage=storage) as local,
        ChannelGrid(local, transport="channel") as grid,
    ):
        result = Trainer().start(
            grid=grid,
            labels=place.labels,
            alignment="plain",
            min_nodes=2,
            checkpoint=place.server,
            checkpoint_every=EVERY,
        )
    np.testing.assert_array_equal(result.model, expected.result.model)
    assert result.history == expected.result.history
    assert place.files() == []


def envelopes(place):
    return [read_envelope(r.content) for r in place.transcript if r.direction == "down"]


def test_message_numbers_grow_and_the_course_comes_again(tmp_path):
    whole = TrainingPlace(tmp_path / "whole")
    whole.run()
    place = TrainingPlace(tmp_path / "broken")
    place.broken(lose={12: "moved"}, die_after=27)
    place.run(resume=True)
    numbers = [int(e["sequence"]) for e in envelopes(place)]
    asked = {}
    for envelope in envelopes(place):
        asked.setdefault(int(envelope["sequence"]), set()).add(str(envelope["step"]))
    assert all(len(steps) == 1 for n, steps in asked.items() if n)  # a number is used for one step
    kept = [n for n in numbers if n]
    assert kept == sorted(kept)

    def courses(found):
        return {
            (int(e.get("course", e["sequence"])), str(e["step"]))
            for e in envelopes(found)
            if e["step"] in ("forward", "backward", "finish")
        }

    assert courses(place) == courses(whole)  # so that what is drawn by it is drawn again


def test_keys_are_new_after_going_back(tmp_path):
    place = TrainingPlace(tmp_path)
    place.run(lose={14: "before"})
    keys = [
        bytes(record.content["values.values"]["public-key"])
        for record in place.transcript
        if record.direction == "up" and "public-key" in record.content.get("values.values", {})
    ]
    assert len(keys) == len(set(keys)) == 4
    nonces = [
        bytes(record.content["updates.values"]["sum.nonce"])
        for record in place.transcript
        if record.direction == "down" and "sum.nonce" in record.content.get("updates.values", {})
    ]
    assert len(nonces) == 4
    assert len(set(nonces)) == 2


def test_rounds_that_are_taken_again_are_counted_again(tmp_path):
    place = TrainingPlace(tmp_path)
    found = place.run(lose={FIRST + 2 * 8 + 2: "before"})
    rows = found.result.ledger.to_frame()
    steps = rows["step"].value_counts()
    assert steps["restore"] == 2
    assert 2 * STEPS < steps["forward"] <= 2 * (STEPS + EVERY)
    down = [r for r in place.transcript if r.direction == "down"]
    messages = {(int(read_envelope(r.content)["sequence"]), r.node_id) for r in down}
    # All but the farewell; and the one that was lost on its way.
    assert len(rows) == len(messages) - 2 + 1


def test_a_resumed_run_counts_what_its_first_life_took(tmp_path):
    """Rounds, and what was spent: also of those that are taken again."""
    place = TrainingPlace(tmp_path, strategy=lambda: Trainer(spend=True))
    place.broken(die_before=FIRST + 2 * 8 + 1)  # eight steps, a snapshot after five
    found = place.run(resume=True)
    steps = found.result.ledger.to_frame()["step"].value_counts()
    assert steps["forward"] == 2 * (STEPS + 3)
    spent = found.result.ledger.privacy["what"].value_counts()
    # The third of them is spent after its last round, and nobody knew of it yet.
    assert [spent[f"step {k}"] for k in range(10)] == [1, 1, 1, 1, 1, 2, 2, 1, 1, 1]
    # In one life everything is known.
    other = TrainingPlace(tmp_path, strategy=lambda: Trainer(spend=True))
    found = other.run(lose={FIRST + 2 * 8 + 1: "before"})
    spent = found.result.ledger.privacy["what"].value_counts()
    assert [spent[f"step {k}"] for k in range(10)] == [1, 1, 1, 1, 1, 2, 2, 2, 1, 1]


class DeclaredTrainer(Trainer):
    """Nodes answer its rounds alone, and let the server write their state by its protocol."""

    protocol = Protocol(
        Round("prepare", "that it is done", tells=FACTS),
        Repeat(
            Round("forward", "hidden values, summed", tells=FACTS),
            Round("backward", "that it is done", tells=FACTS),
            at_most="steps",
        ),
        Repeat(Round("finish", "how many steps were taken", tells=FACTS), at_most=2),
    )


@pytest.mark.parametrize("strategy", [Trainer, DeclaredTrainer])
def test_pinned_identities_sign_the_new_keys(tmp_path, strategy):
    place = identified(TrainingPlace(tmp_path, strategy=strategy))
    expected = place.run()
    place.broken(die_after=19, run_id=7)
    assert_same_model(place.run(resume=True, run_id=2**62, lose={8: "moved"}), expected)
    # Whoever signs by another key than the pinned one is found out when keys are new.
    place.broken(die_after=19)
    place.configs["court"]["identity-key"] = str(tmp_path / "court-other.pem")
    assert "pins" in str(place.broken(PartyError, resume=True))


class Watching(Trainer):
    """Looks at the disks before each step."""

    def __init__(self, place, seen, steps=STEPS):
        super().__init__(steps)
        self._place, self._seen = place, seen

    def run(self, federation, alignment, result, progress):
        once = federation.sum

        def looking(*args, **kwargs):
            files = {p.name: p.stat().st_size for p in self._place.files()}
            stamps = {p.name: p.stat().st_mtime_ns for p in self._place.files()}
            self._seen.append((files, stamps))
            return once(*args, **kwargs)

        federation.sum = looking
        super().run(federation, alignment, result, progress)


def watched(tmp_path, every, steps=STEPS):
    place, seen = TrainingPlace(tmp_path, every=every), []
    place.strategy = lambda: Watching(place, seen, steps)
    place.run()
    return place, seen


def test_nothing_is_written_between_two_snapshots_but_rows_of_the_ledger(tmp_path):
    place, seen = watched(tmp_path, 10)
    journal = place.journal.name
    for at in range(1, STEPS):
        (_, before), (_, now) = seen[at - 1 : at + 1]
        changed = {name for name in now if before.get(name) != now[name]}
        if at in (1, 11, 21):  # what is no longer needed goes with the step after a snapshot
            assert changed <= {journal}
        elif at % 10:
            assert changed == {journal}
            assert set(now) == set(before)
        else:
            assert len(changed) == 1 + 2 * 3 + 1  # journal, three files a party, the server's own
    sizes = [files[journal] for files, _ in seen]
    grown = np.diff(sizes)
    assert max(grown) < 1500  # two rounds of two parties


def test_the_journal_does_not_grow_by_what_is_summed(tmp_path):
    """A hundred times the values, the same journal."""

    class Wide(NumpyHalf):
        @step
        def forward(self, batch):
            found = super().forward(batch)
            wide = {"wide": np.ones(20_000)}
            return type(found)({**found.values, **wide})

    class Widely(Trainer):
        party = Wide

    sizes = {}
    for name, strategy in {"narrow": Trainer, "wide": Widely}.items():
        place = TrainingPlace(tmp_path / name, strategy=strategy, every=100)
        place.broken(die_before=40)
        sizes[name] = place.journal.stat().st_size
    assert abs(sizes["wide"] - sizes["narrow"]) < 500


def test_one_generation_lies_there_once_the_next_is_complete(tmp_path):
    place, seen = watched(tmp_path, EVERY)
    for at, (files, _) in enumerate(seen):
        if at == 0 or at % EVERY == 0:
            continue  # the older one goes with the first message after the snapshot
        for name in place.tables:
            mine = [f.removeprefix(f"{name}.party") for f in files if f.startswith(f"{name}.")]
            assert sum(f.startswith(".snapshot-") for f in mine) == 1
            assert sum(f.startswith(".live-") for f in mine) == 1
        assert sum(".flwr-vertical-journal.snapshot-" in f for f in files) == 1
    assert max(len(files) for files, _ in seen) <= 2 + 2 * 5


def test_files_are_private(tmp_path):
    place = TrainingPlace(tmp_path)
    place.broken(die_after=20)
    assert len(place.files()) == 2 + 2 * 3
    for path in place.files():
        assert path.stat().st_mode & 0o777 == 0o600
    # A neighbour's file of a like name is left alone.
    odd = place.checkpoint("bank").with_name("bank.party.snapshot-1.party")
    odd.write_bytes(b"a party named bank.party.snapshot-1")
    half = place.checkpoint("bank").with_name("bank.party.live-00ff.123.new")
    half.write_bytes(b"half")
    place.run(resume=True)
    assert place.files() == [odd]


def test_a_snapshot_whose_live_objects_did_not_change_is_not_written_again(tmp_path):
    class Still(Trainer):
        def run(self, federation, alignment, result, progress):
            federation.call("prepare")
            federation.call("finish")  # begins a list

            def body(i):
                federation.call("finish")
                names.append({n for n in place.beside("bank") if n.startswith(".live-")})

            federation.loop(6, body, {})

    place, names = TrainingPlace(tmp_path, strategy=Still, every=2), []
    place.run()
    assert len({frozenset(found) for found in names}) == 1
    assert len(names[0]) == 1


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(("owner", "name"), [(ServerSnapshots, "write"), (Journal, "add_snapshot")])
def test_a_crash_between_the_parties_files_and_the_mark(
    tmp_path, monkeypatch, expected, owner, name, nth
):
    place, count, once = TrainingPlace(tmp_path), itertools.count(1), getattr(owner, name)

    def crash(*args, **kwargs):
        if next(count) == nth:
            raise ServerKilled
        return once(*args, **kwargs)

    monkeypatch.setattr(owner, name, crash)
    place.broken()
    numbers = [n for n in place.beside("court") if "snapshot" in n]
    assert len(numbers) == min(nth, 2)  # the one before it is there as well
    monkeypatch.undo()
    assert_same_model(place.run(resume=True), expected)
    assert place.files() == []


@pytest.mark.parametrize(
    ("kind", "how"),
    [("snapshot", "cut"), ("live", "flipped"), ("live", "gone")] + [
        pytest.param(kind, how, marks=pytest.mark.slow)
        for kind, how in (
            ("live", "cut"), ("live", "empty"), ("snapshot", "empty"), ("snapshot", "flipped"),
            ("snapshot", "gone"),
        )
    ],
)  # fmt: skip
def test_a_torn_snapshot_of_a_party(tmp_path, expected, kind, how):
    place = TrainingPlace(tmp_path)
    place.broken(die_after=20)
    (name,) = (n for n in place.beside("court") if n.startswith(f".{kind}-"))
    path = place.checkpoint("court").with_name(f"court.party{name}")
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"cut": whole[:-9], "empty": b"", "flipped": flipped}[how])
    error = place.broken(PartyError, resume=True)
    assert error.party == "court"
    assert path.name in str(error) or (kind, how) == ("live", "gone")
    path.write_bytes(whole)
    assert_same_model(place.run(resume=True), expected)


@pytest.mark.parametrize("how", ["cut", "gone", "another run"])
def test_a_torn_snapshot_of_the_server(tmp_path, expected, how):
    place = TrainingPlace(tmp_path / "a")
    place.broken(die_after=20)
    (path,) = (p for p in place.files() if "journal.snapshot-" in p.name)
    whole = path.read_bytes()
    if how == "cut":
        path.write_bytes(whole[:-3])
    elif how == "gone":
        path.unlink()
    else:
        other = TrainingPlace(tmp_path / "b")
        other.broken(die_after=20)
        path.write_bytes(next(p for p in other.files() if p.name == path.name).read_bytes())
    error = place.broken(ProtocolError, resume=True)
    assert str(path) in str(error)
    path.write_bytes(whole)
    assert_same_model(place.run(resume=True), expected)


def test_a_snapshot_of_another_run_is_refused(tmp_path):
    place = TrainingPlace(tmp_path)
    place.broken(die_after=20)
    kept = shutil.copytree(tmp_path / "court", tmp_path.parent / "court of another run")
    for path in place.files():
        path.unlink()
    place.broken(die_after=20)
    shutil.rmtree(tmp_path / "court")
    shutil.copytree(kept, tmp_path / "court")
    error = place.broken(PartyError, resume=True)
    assert error.party == "court"
    assert "belongs to another run of the same name" in str(error)


CHANGES = {
    "checkpoint_every: 5 then, 6 now": lambda place: place.start.update(checkpoint_every=6),
    "checkpoint_every: 5 then, not set now": lambda place: place.start.update(
        checkpoint_every=None
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_snapshot_from_other_settings_is_refused(tmp_path, what):
    place = TrainingPlace(tmp_path)
    place.broken(die_after=20)
    before = {path: path.read_bytes() for path in place.files()}
    CHANGES[what](place)
    error = place.broken(ConfigError, resume=True)
    assert what in str(error)
    assert {path: path.read_bytes() for path in place.files()} == before


def test_code_that_trains_other_objects_is_refused(tmp_path):
    place = TrainingPlace(tmp_path)
    place.broken(die_after=20)

    class Other(Trainer):
        def run(self, federation, alignment, result, progress):
            federation.call("prepare")
            federation.loop(STEPS, lambda i: None, {"another": {}})

    error = place.broken(ProtocolError, resume=True, strategy=Other())
    assert "holds the objects ['federation.rng', 'head', 'history']" in str(error)

    class NoLoop(Trainer):
        def run(self, federation, alignment, result, progress):
            federation.call("prepare")
            federation.call("finish")

    error = place.broken(ProtocolError, resume=True, strategy=NoLoop())
    assert "is a loop with snapshots, but the strategy now asks for step 'finish'" in str(error)


def losing_strategy(at):
    """End all processes before some sums, as Flower does after each message; keep their state."""

    class Losing(Trainer):
        def run(self, federation, *args):
            grid, once, count = federation.grid, federation.sum, itertools.count(1)

            def forgetting(*args, **kwargs):
                if next(count) in at:
                    grid.app.forget()
                return once(*args, **kwargs)

            federation.sum = forgetting
            super().run(federation, *args)

    return Losing()


def test_a_process_change_without_checkpoints_is_an_error(tmp_path):
    place = TrainingPlace(tmp_path, strategy=lambda: losing_strategy({4}))
    with pytest.raises(PartyError) as caught:
        place.plain()
    assert caught.value.party == "bank"
    assert caught.value.step == "forward"
    assert "live objects that its last step left are lost" in str(caught.value)
    assert "checkpoint_every" in str(caught.value)


def test_a_process_change_is_mended_by_what_is_on_disk(tmp_path, expected):
    at_each_step = TrainingPlace(tmp_path / "a", every=None, strategy=lambda: losing_strategy([4]))
    assert_same_model(at_each_step.run(), expected)
    assert at_each_step.files() == []
    between = TrainingPlace(tmp_path / "b", strategy=lambda: losing_strategy({4, 9, 10, 20}))
    found = between.run()
    assert_same_model(found, expected)
    steps = found.result.ledger.to_frame()["step"].value_counts()
    assert steps["restore"] >= 2 * 2
    assert "resume" not in steps  # the nodes were there all the time


def test_a_new_process_for_every_message_ends_the_run(tmp_path):
    place = TrainingPlace(tmp_path, strategy=lambda: losing_strategy(set(range(500))))
    error = place.broken(PartyError)
    assert "lost 3 times" in str(error)
    assert "resume=true run-name='night'" in str(error)


def test_a_step_that_fails_leaves_no_half_changed_model(tmp_path):
    """The next step finds what the last one that ended left, or says that it is lost."""

    class Stumbling(NumpyHalf):
        @step
        def stumble(self):
            self.live.get("layer", self._new).w += 1
            raise ValueError("after the change")

    class Careless(Trainer):
        party = Stumbling

        def run(self, federation, alignment, result, progress):
            federation.call("prepare")
            with pytest.raises(PartyError, match="after the change"):
                federation.call("stumble")
            result.party_metrics = federation.call("finish")

    place = TrainingPlace(tmp_path, strategy=Careless, every=None)
    with pytest.raises(PartyError, match="are lost"):
        place.run(checkpoint=False)
    found = place.run()
    expected = TrainingPlace(tmp_path / "x", strategy=lambda: Trainer(steps=0)).plain()
    for name, table in expected.tables.items():
        np.testing.assert_array_equal(found.tables[name].to_numpy(), table.to_numpy())


def test_bad_settings_and_objects(tmp_path):
    place = TrainingPlace(tmp_path)
    for value in (-1, 2.5, True):
        place.start["checkpoint_every"] = value
        assert "checkpoint_every" in str(place.broken(ConfigError))
    place.start["checkpoint_every"] = 5
    assert "needs checkpoint" in str(place.broken(ConfigError, checkpoint=False))

    class Bare(Trainer):
        def run(self, federation, alignment, result, progress):
            federation.loop(3, lambda i: None, {"x": self.bare})

    for bare, words in {"array": np.zeros(2), "object": object()}.items():
        strategy = Bare()
        strategy.bare = words
        error = ConfigError if bare == "array" else CodecError
        assert "'x'" in str(place.broken(error, strategy=strategy))
        for path in place.files():
            path.unlink()


def test_the_state_holds_a_version_and_no_model(tmp_path):
    place, states = TrainingPlace(tmp_path), []

    class Spied(Trainer):
        def run(self, federation, alignment, result, progress):
            super().run(federation, alignment, result, progress)
            states.extend(dict(State(c)) for c in federation.grid.local.contexts.values())

    place.strategy = Spied
    place.run()
    for state in states:
        assert len(state["node.live"]) == 16
        assert "layer" not in "".join(state)
