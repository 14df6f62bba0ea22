"""A run that breaks off goes on from its journal and checkpoints, with the same numbers."""

import logging
import os
import re
import shutil
import stat
import time

import numpy as np
import pytest
import resuming as resuming_module
from resuming import (
    FaultyGrid,
    Place,
    ServerKilled,
    assert_same,
    identified,
    resuming,
    sent,
    steady,
)

from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    RecordingGrid,
    Summands,
    party_app,
    step,
)
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.errors import ConfigError, PartyError, ProtocolError
from flwr_vertical.node.state import State
from flwr_vertical.protocol.disk import read_frame
from flwr_vertical.protocol.messages import read_envelope
from flwr_vertical.server.journal import Journal
from flwr_vertical.whole_files import TEMPORARY_PREFIX
from strategies.fknn import FKNN
from tests.kit.rounds import Rounds


@pytest.mark.parametrize("after", [False, True], ids=["before sending", "after answers"])
def test_a_server_killed_again_and_again_repeats_no_round(tmp_path, monkeypatch, after):
    """Every life of the server takes one or two rounds more than the one before."""
    steady(monkeypatch)
    whole = Place(tmp_path / "whole", alignment="private-id")
    expected = whole.run()
    place = Place(tmp_path / "broken", alignment="private-id")
    lives = 0
    while True:
        at = 3 if lives == 0 else 2 + lives % 2
        try:
            found = place.run(
                resume=lives > 0, run_id=1 + lives, **{"die_after" if after else "die_before": at}
            )
            break
        except ServerKilled:
            lives += 1
            assert lives < 40
    assert lives > 3
    assert_same(found, expected)
    nodes = len(place.tables)
    greetings = resuming(place.transcript)
    # Who is killed at the farewell has nobody to greet in the next life.
    assert greetings in ((lives - 1) * nodes, lives * nodes)
    repeated = lives * nodes if after else 0
    assert sent(place.transcript) == expected.sent + greetings + repeated
    rounds = found.result.ledger.to_frame()
    once = rounds[rounds["step"] != "resume"].drop(columns="seconds").reset_index(drop=True)
    unbroken = expected.result.ledger.to_frame().drop(columns="seconds")
    columns = ["step", "mode", "party", "bytes_down", "values_up"]
    assert once[columns].equals(unbroken[columns])
    assert place.files() == whole.files() == []


def test_random_orders_and_label_keys_outlive_the_server(tmp_path):
    """Without the tests' steady randomness: blinded labels must still meet their samples."""
    for alignment in ("private-id", BlindRsaAligner(bits=2048)):
        place = Place(tmp_path / str(alignment)[:8], alignment=alignment)
        expected = place.run().result.coefficients["estimate"]
        place.broken(die_after=3)
        place.broken(resume=True, die_after=1)
        resumed = place.run(resume=True, lose={2: "moved"}).result.coefficients["estimate"]
        np.testing.assert_allclose(resumed, expected, rtol=1e-5)


def test_a_run_that_is_finished_but_not_saved(tmp_path):
    place = Place(tmp_path)

    def disk_full(result):
        raise OSError("no space left on device")

    error = place.broken(OSError, save=disk_full)
    assert "resume=true run-name='night'" in error.__notes__[0]
    assert place.files() == [place.journal]  # the parties are done with it
    kept = []
    found = place.run(resume=True, save=kept.append)
    assert found.sent == 2  # nobody is greeted; the farewell is said again
    assert kept == [found.result]
    assert place.files() == []


def test_the_error_of_a_failed_run_says_how_to_resume(tmp_path):
    place = Place(tmp_path, patience=0.5)
    error = place.broken(PartyError, lose={6: "gone"})
    assert error.party == "court"
    assert "it crashed after 1 try, and it did not come back in 0.5 s" in str(error)
    assert "resume=true run-name='night'" in str(error)
    assert str(place.journal) in str(error)
    place.start["patience"] = 30.0
    assert_same(place.run(resume=True), Place(tmp_path / "other").run())


class DroppingGrid(RecordingGrid):
    """Drops the reply of one node to the fifth round; `waited` has the seconds that would pass."""

    rounds, waited = 0, 0.0

    def send_and_receive(self, messages, *, timeout=None):
        self.rounds += 1
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if self.rounds != 5:
            return replies
        self.waited += timeout
        return replies[1:]


def test_after_a_dropped_reply_a_node_is_asked_again_not_waited_for(tmp_path, monkeypatch):
    patient = {"timeout": 3600.0, "patience": 20.0}
    expected, grids = Place(tmp_path / "whole", **patient).run(), []

    def dropping(grid, app, **_):
        grids.append(DroppingGrid(grid))
        return grids[-1]

    monkeypatch.setattr(resuming_module, "FaultyGrid", dropping)
    found = Place(tmp_path / "broken", **patient).run()
    assert_same(found, expected)
    assert grids[0].waited == patient["patience"]
    assert "resume" not in set(found.result.ledger.to_frame()["step"])


def test_state_lost_at_the_same_node_is_mended_without_a_greeting(tmp_path):
    """As where a party's process ends between two messages."""
    place = Place(tmp_path)
    expected = place.run()

    class Forgetful(Rounds):
        def run(self, federation, *args):
            grid = federation.grid
            once = federation.sum

            def forgetting(*a, **k):
                grid.end_process()
                return once(*a, **k)

            federation.sum = forgetting
            super().run(federation, *args)

    found = place.run(strategy=Forgetful())
    assert_same(found, expected)
    assert found.sent == expected.sent


def test_without_checkpoints_or_in_every_try_a_lost_party_ends_the_run(tmp_path):
    place, hasty = Place(tmp_path), Place(tmp_path, patience=0.5)
    started = time.monotonic()
    error = hasty.broken(PartyError, checkpoint=False, lose={5: "gone"})
    assert time.monotonic() - started < 20
    assert (error.party, "it crashed after 3 tries" in error.cause) == ("court", True)
    assert "resume" not in str(error)
    assert place.files() == []
    error = place.broken(PartyError, lose=dict.fromkeys(range(5, 30), "before"))
    assert "it crashed after 3 tries" in str(error)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("absent", "no checkpoint of this run"), ("moved folder", "no checkpoint of this run"),
        ("cut", "cut off"), ("empty", "cut off"), ("damaged", "cut off"), ("first byte", ""),
        ("another run", ""), ("other data", "its data have changed"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_of_no_use_gets_one_advice_which_helps(tmp_path, kind, said):
    place = Place(tmp_path)
    place.broken(die_before=7)
    path = place.checkpoint("court")
    whole = path.read_bytes()
    if kind == "absent":
        path.unlink()
    elif kind == "moved folder":
        place.configs["court"] = {"output": str(tmp_path / "elsewhere")}
        path = tmp_path / "elsewhere" / "night" / ".checkpoint" / "court.party"
    elif kind == "another run":
        there = Place(tmp_path / "other")
        there.broken(die_before=7)
        shutil.copy(there.checkpoint("court"), path)
    elif kind == "other data":
        place.tables["court"] = place.tables["court"] + 1.0
    else:
        at = 0 if kind == "first byte" else 400
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes({"cut": whole[:-7], "empty": b""}.get(kind, flipped))
    error = place.broken(PartyError, resume=True)
    assert error.party == "court"
    error = str(error)
    assert said in error
    assert (str(path) in error) or kind == "other data"
    assert "put right what failed and start the run again with resume=true" in error
    assert error.count("anew") == 1
    assert error.endswith("give the run up: remove this file and start the run anew")
    assert str(place.journal) in error
    if kind in ("absent", "moved folder"):  # with the file in its place the run goes on
        place.configs.clear()
        place.checkpoint("court").write_bytes(whole)
        place.run(resume=True)
    else:  # a run that is given up can be started anew under its name
        place.journal.unlink()
        assert place.run().result.coefficients is not None
        assert not path.exists()


def test_a_checkpoint_cut_anywhere_is_no_checkpoint(tmp_path):
    place = Place(tmp_path)
    place.broken(die_before=7)
    whole = place.checkpoint("bank").read_bytes()
    first = 20 + int.from_bytes(whole[4:12], "little")
    for cut in (1, 19, 20, 27, first - 1, first, first + 5, first + 20, first + 40, len(whole) - 1):
        place.checkpoint("bank").write_bytes(whole[:cut])
        assert "cut off" in str(place.broken(PartyError, resume=True))
    place.checkpoint("bank").write_bytes(whole)
    place.run(resume=True)


def test_older_files_are_refused(tmp_path):
    place = Place(tmp_path)
    place.broken(die_before=5)
    journal = place.journal.read_bytes()
    shutil.copytree(tmp_path / "court", tmp_path / "backup")
    place.broken(resume=True, die_before=5)
    later = place.journal.read_bytes()
    place.journal.write_bytes(journal)
    assert "is an older one" in str(place.broken(PartyError, resume=True))
    place.journal.write_bytes(later)
    shutil.rmtree(tmp_path / "court")
    shutil.copytree(tmp_path / "backup", tmp_path / "court")
    error = place.broken(PartyError, resume=True)
    assert error.party == "court"
    assert "its checkpoint is at message 3, but the journal of the server at 7" in str(error)


def frames(path):
    starts = []
    with path.open("rb") as file:
        while True:
            starts.append(file.tell())
            if read_frame(file, path) is None:
                return starts


def test_a_torn_or_damaged_journal_byte_by_byte(tmp_path):
    identity = {"strategy": "x"}
    book = Journal.create(tmp_path, identity)
    position = {"sequence": 0, "answered": {"p": 0}, "rows": [[1, "a", "call", "p", 1, 1, 0, 0.0]]}
    book.add_opening({"p": {"party": "p"}}, position)
    drawn = book.random_bytes(9)
    for k in range(3):
        assert book.next_round("a", "d") is None
        book.add_round(
            "a", "d", {"x": np.arange(3.0)}, {"p": {"k": k}}, {**position, "sequence": k}
        )
    book.close()
    whole = book.path.read_bytes()
    *starts, end = frames(book.path)
    assert len(starts) == 6
    for cut in [*range(starts[-1], starts[-1] + 30), *range(starts[-1] + 30, end, 11)]:
        book.path.write_bytes(whole[:cut])
        book = Journal.resume(tmp_path, identity)
        assert book.random_bytes(9) == drawn
        assert [book.next_round("a", "d").public["p"]["k"] for _ in range(2)] == [0, 1]
        assert book.next_round("a", "d") is None
        book.close()
        assert book.path.stat().st_size == starts[-1]  # what is appended follows whole entries
    for at in [*range(25), *range(25, len(whole), 7)]:
        book.path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        in_last_payload = at >= starts[-1] + 20
        if in_last_payload:
            Journal.resume(tmp_path, identity).close()
            continue
        with pytest.raises((ProtocolError, ConfigError)) as caught:
            Journal.resume(tmp_path, identity)
        assert str(book.path) in str(caught.value)


def test_a_round_whose_random_bytes_are_lost_is_noticed(tmp_path):
    """A party has answered; the server would ask for something else under the same number."""
    place = Place(tmp_path, alignment="private-id")
    place.broken(die_after=4)
    *_, order, _ = frames(place.journal)  # of the rows, drawn after the rounds of alignment
    place.journal.write_bytes(place.journal.read_bytes()[:order])
    error = place.broken(PartyError, resume=True)
    assert "then it asked for something else" in str(error)


def changed_label(place):
    place.labels = place.labels.copy()
    place.labels.iloc[0] += 1


CHANGED_POLICY = {"policy.aggregations": "ckks"}
CHANGES = {
    "max_iter: 6 then, 7 now": lambda place: setattr(place, "strategy", lambda: Rounds(max_iter=7)),
    "strategy: rounds then, fknn now": lambda place: setattr(place, "strategy", FKNN),
    'aggregation: "masked" then, "plain" now': lambda place: setattr(place, "mode", "plain"),
    "seed: 0 then, 1 now": lambda place: place.start.update(seed=1),
    "align_rows": lambda place: place.start.update(align_rows="intersection"),
    "alignment": lambda place: place.start.update(alignment="private-id"),
    "labels": changed_label,
    "label_holder": lambda place: place.start.update(labels=None, label_holder="bank"),
    "parties": lambda place: place.start.update(parties=["bank"]),
    "fraction_bits": lambda place: place.start.update(fraction_bits=30),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_journal_of_another_run_is_refused(tmp_path, what):
    place = Place(tmp_path)
    place.broken(die_before=7)
    before = place.journal.read_bytes()
    CHANGES[what](place)
    error = place.broken(ConfigError, resume=True)
    assert "is the journal of another run (" in str(error)
    assert what in str(error)
    assert place.journal.read_bytes() == before
    again = Place(tmp_path)
    again.start.update(timeout=20, retries=1, patience=31)  # these may change
    again.run(resume=True)


def test_another_course_is_refused(tmp_path):
    place = Place(tmp_path)
    place.broken(die_before=9)

    class Wayward(Rounds):
        def run(self, federation, *args):
            federation.call("coefficients")

    error = place.broken(ProtocolError, resume=True, strategy=Wayward())
    assert "took another course" in str(error)
    assert "step 'prepare', but the strategy now asks for step 'coefficients'" in str(error)

    class Revised(Rounds):
        def run(self, federation, *args):
            federation.labels[0] += 1
            super().run(federation, *args)

    error = place.broken(ProtocolError, resume=True, strategy=Revised())
    assert "the same with other arguments" in str(error)
    place.run(resume=True)


def test_nothing_to_resume_or_to_overwrite(tmp_path):
    place = Place(tmp_path)
    assert "holds no journal" in str(place.broken(ConfigError, resume=True))
    place.run()
    assert "or it is finished" in str(place.broken(ConfigError, resume=True))
    error = place.broken(ConfigError, resume=True, checkpoint=False)
    assert "resume=True needs checkpoint" in str(error)
    place.broken(die_before=7)
    assert "journal of an unfinished run of this name" in str(place.broken(ConfigError))
    place.run(resume=True)
    place.run()  # the name is free again


def test_two_runs_of_one_name_at_once(tmp_path):
    first, second = Place(tmp_path), Place(tmp_path)

    class Interrupted(Rounds):
        def run(self, federation, *args):
            error = second.broken(ConfigError, resume=True)
            assert "another run is writing to" in str(error)
            second.server = tmp_path / "other server" / "night"
            second.run()
            super().run(federation, *args)

    # The other run took the checkpoints and removed them; this one makes its own again.
    first.run(strategy=Interrupted())
    assert first.files() == []

    class Overtaken(Rounds):
        def run(self, federation, *args):
            second.broken(die_before=6)
            super().run(federation, *args)

    error = first.broken(PartyError, strategy=Overtaken())
    assert "another run of the same name has taken the checkpoint" in str(error)
    second.run(resume=True)


def test_a_run_needs_a_name(tmp_path):
    class One(Party):
        @step
        def one(self):
            return Summands({"x": np.ones(1)})

    book = Journal.create(tmp_path, {})
    with LocalGrid(party_app(One, storage=MemoryStorage({})), [{"party": "p"}]) as grid:
        federation = Federation(grid, journal=book)
        with pytest.raises(PartyError, match=r"'p' cannot keep a checkpoint .* set 'run-name'"):
            federation.open()


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_private_keys_lie_in_private_files_and_never_travel(tmp_path, mode):
    place = Place(tmp_path, "fknn", mode)
    states = {}

    class Spied(FKNN):
        def run(self, federation, *args):
            for context in federation.grid.local.contexts.values():
                states[context.node_id] = dict(State(context))
            super().run(federation, *args)

    place.broken(die_after=6, lose={4: "moved"}, strategy=Spied(n_neighbors=2, block_pairs=120))
    keys = [
        value[:32] if key == "sum.private-key" else value[-400:-350]
        for state in states.values()
        for key, value in state.items()
        if key in ("sum.private-key", "sum.ckks-secret")
    ]
    assert len(keys) == (2 if mode == "masked" else 1)
    holders = [p for p in place.files() if any(key in p.read_bytes() for key in keys)]
    assert len(holders) == len(keys)
    assert place.journal not in holders
    for path in place.files():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if path != place.journal:
            assert path.parent.name == ".checkpoint"
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # One file for each node and the journal: nothing half-written.
    assert len(place.files()) == (3 if mode == "masked" else 4)
    place.run(resume=True, strategy=Spied(n_neighbors=2, block_pairs=120))
    assert len(place.transcript) > 20
    for record in place.transcript:
        for part in record.content.values():
            for value in part.values():
                raw = value.data if hasattr(value, "data") else value
                for item in raw if isinstance(raw, list) else [raw]:
                    assert not any(isinstance(item, bytes) and key in item for key in keys)
    assert place.files() == []


def test_everything_is_on_disk_before_the_next_message(tmp_path, monkeypatch):
    """One flush of the journal a round, and one of its checkpoint at each party."""
    events = []
    names = {}

    def flushed(descriptor):
        events.append(names.setdefault(os.readlink(f"/proc/self/fd/{descriptor}"), descriptor))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc to tell which file is flushed")
    place = Place(tmp_path)
    monkeypatch.setattr(os, "fsync", flushed)
    place.run()
    book = str(place.journal)
    rounds = place.rounds - 1  # the farewell is kept by nobody
    assert events.count(names[book]) == rounds + 1  # the head of the journal, and its end
    assert len(events) == rounds + 1 + 2 * rounds


def test_a_party_deaf_to_the_farewell_does_not_spoil_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "propagate", True)
    place = Place(tmp_path)
    place.run()
    last = place.rounds
    found = place.run(lose={last: "gone"})
    assert found.result.coefficients is not None
    assert "'court' was not told to remove its checkpoint (Flower reports error 8" in caplog.text
    assert place.files() == [place.checkpoint("court")]
    place.run()  # a new run of that name clears it away
    assert place.files() == []


def test_results_may_be_saved_beside_a_journal(tmp_path):
    place = Place(tmp_path)
    place.run(save=lambda result: result.save(place.server))
    assert (place.server / "result.json").is_file()
    assert not [p for p in place.files() if p.name.startswith(TEMPORARY_PREFIX)]


@pytest.mark.parametrize("at", [1, 3, 6])
def test_signed_keys_stay_valid_in_a_new_run_of_flower(tmp_path, at):
    """A greeting is signed for a run; the run that goes on has another number."""
    place = identified(Place(tmp_path))
    expected = place.run()
    place.broken(die_after=at, run_id=7)
    assert_same(place.run(resume=True, run_id=2**63 + 9), expected)


def test_a_damaged_journal_gets_one_advice_which_helps(tmp_path):
    place = Place(tmp_path)
    place.broken(die_before=7)
    whole = place.journal.read_bytes()
    place.journal.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    for resume in (False, True):
        error = str(place.broken(ProtocolError, resume=resume))
        assert error.count("anew") == 1
        assert "remove this file and start the run anew" in error
    place.journal.unlink()
    place.run()


def test_a_resumed_run_ends_at_once_where_a_policy_forbids_it_now(tmp_path):
    """The refusal is the error, not that the party was waited for in vain."""
    place = Place(tmp_path)
    place.broken(die_before=7)
    place.configs["court"] = CHANGED_POLICY
    error = place.broken(PartyError, resume=True)
    assert (error.party, error.step) == ("court", "resume")
    assert "party 'court' refuses by policy.aggregations" in error.cause
    place.configs.clear()
    place.run(resume=True)


def test_a_party_that_comes_back_with_another_policy_ends_the_run_at_once(tmp_path, monkeypatch):
    class Changing(FaultyGrid):
        def end_process(self, **how):
            super().end_process(**how)
            self.local.contexts[self.victim].node_config.update(CHANGED_POLICY)

    monkeypatch.setattr("resuming.FaultyGrid", Changing)
    error = Place(tmp_path).broken(PartyError, lose={6: "moved"})
    assert (error.party, error.step) == ("court", "resume")
    assert "party 'court' refuses by policy.aggregations" in error.cause
    assert "did not come back" not in str(error)


@pytest.mark.parametrize("now", ["other", "none"])
@pytest.mark.parametrize(
    ("mode", "who"), [("masked", "court"), ("ckks", "court"), ("ckks", "arbiter")]
)
def test_an_identity_that_changed_while_a_run_was_broken_off_is_noticed(tmp_path, mode, who, now):
    place = identified(Place(tmp_path, mode=mode))
    place.broken(die_before=7)
    before = dict(place.configs[who])
    place.configs[who]["identity-key"] = str(tmp_path / f"{who}-other.pem")
    if now == "none":
        del place.configs[who]["identity-key"]
    error = place.broken(PartyError, resume=True)
    name = "the arbiter" if who == "arbiter" else f"party '{who}'"
    told = "presented the identity" if now == "other" else "presented no identity"
    assert re.search(rf"{name} {told}.*party 'bank' pins.*'pin\.{who}'", str(error)), str(error)
    place.configs[who] = before
    assert place.run(resume=True).result.coefficients is not None


@pytest.mark.parametrize("fate", ["moved", "before"])
def test_a_party_that_comes_back_under_another_identity_is_noticed(tmp_path, monkeypatch, fate):
    other = str(tmp_path / "broken" / "court-other.pem")

    class Replaced(FaultyGrid):
        def end_process(self, **how):
            super().end_process(**how)
            self.local.contexts[self.victim].node_config["identity-key"] = other

    expected = identified(Place(tmp_path / "whole")).run(lose={6: fate})
    assert expected.result.coefficients is not None
    monkeypatch.setattr("resuming.FaultyGrid", Replaced)
    error = identified(Place(tmp_path / "broken")).broken(PartyError, lose={6: fate})
    assert error.party == "bank"
    assert re.search(
        r"party 'court' presented the identity .*'bank' pins .*'pin\.court'", str(error)
    )


def test_a_relay_that_changes_who_came_back_is_noticed(tmp_path, monkeypatch):
    class Relay(FaultyGrid):
        def send_and_receive(self, messages, *, timeout=None):
            sent = list(messages)
            for envelope in (read_envelope(message.content) for message in sent):
                if "returned.last" in envelope:
                    envelope["returned.last"] = [n + 1 for n in envelope["returned.last"]]
            return super().send_and_receive(sent, timeout=timeout)

    place = identified(Place(tmp_path))
    place.broken(die_before=7)
    monkeypatch.setattr("resuming.FaultyGrid", Relay)
    assert "is not signed by the identity of party" in str(place.broken(PartyError, resume=True))
