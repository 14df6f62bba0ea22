"""What a run leaves behind, what it would replace, and data that change while it goes on."""

import contextlib
import errno
import itertools
import logging
import os
import re
import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Error, Message, RecordDict
from resuming import METHODS, FaultyGrid, Place, assert_same
from training import TrainingPlace, assert_same_model

from flwr_vertical import FileStorage, LocalGrid, Party, party_app, registry
from flwr_vertical.errors import ConfigError, PartyError, StorageError
from flwr_vertical.node import checkpoint as checkpoints
from flwr_vertical.node.config import NODE_KEYS, NodeKey, check_node_config
from flwr_vertical.node.steps import StepGroup, Uses, node_keys_of
from flwr_vertical.protocol import disk
from flwr_vertical.server.run_record import journaled
from tests.kit.rounds import Rounds


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_a_failed_opening_leaves_no_key(tmp_path, mode):
    place = Place(tmp_path, mode=mode)
    place.configs["court"] = {"outptu": "elsewhere"}
    error = place.broken(PartyError)
    assert (error.party, error.step) == ("court", "hello")
    assert "did you mean 'output'" in str(error)
    assert not hasattr(error, "__notes__")  # there is nothing to resume
    assert place.files() == []
    assert not list(tmp_path.rglob(".checkpoint"))
    place.configs.clear()
    place.start["parties"] = ["bank", "court", "nobody"]
    place.start["min_nodes"] = 2
    assert "absent" in str(place.broken(ConfigError))
    assert place.files() == []


def test_leftovers_of_an_opening_that_was_killed_go_with_the_next_run(tmp_path):
    place = Place(tmp_path)
    place.broken(die_after=1)
    left = place.checkpoint("bank")
    assert left.is_file()
    half = left.with_name("bank.party.999999999.new")
    half.write_bytes(b"half")
    other = Place(tmp_path)
    other.name, other.server = "morning", tmp_path / "server" / "morning"
    other.run()
    assert place.files() == [place.journal]  # the server's, which holds no key and no round
    assert not left.parent.exists()
    place.run(resume=True)
    assert place.files() == []


def test_of_two_parties_that_clear_one_folder_either_may_remove_it(tmp_path, monkeypatch):
    folder, scan = tmp_path / "night" / ".checkpoint", os.scandir

    def party(name, run="night"):
        path = tmp_path / run / ".checkpoint" / f"{name}.party"
        return checkpoints.Checkpoint(path, b"token", name, "party", str)

    def scandir(path):
        """The neighbour ends when this party has begun to look at the folder."""
        if str(path) == str(folder):
            monkeypatch.setattr(os, "scandir", scan)
            party("court").remove()
            assert not folder.exists()
        return scan(path)

    clearings = (
        party("bank").begin,
        party("bank").remove,
        lambda: checkpoints.clear_openings(party("bank", "morning").path),
    )
    for clear in clearings:
        folder.mkdir(parents=True)
        monkeypatch.setattr(os, "scandir", scandir)
        clear()
        assert not folder.exists()
        assert os.scandir is scan


def test_a_run_that_got_further_is_left_alone_by_the_next(tmp_path):
    place = Place(tmp_path)
    expected = Place(tmp_path / "whole").run()
    place.broken(die_after=5)
    other = Place(tmp_path)
    other.name, other.server = "morning", tmp_path / "server" / "morning"
    other.run()
    assert_same(place.run(resume=True), expected)


@pytest.mark.parametrize("at", [1, 2])
def test_a_run_killed_before_its_first_round_begins_anew(tmp_path, at):
    """Nothing is lost, even where a party has cleared away what it kept of the opening."""
    place = Place(tmp_path)
    expected = Place(tmp_path / "whole").run()
    place.broken(die_after=at)
    place.checkpoint("bank").unlink()
    assert_same(place.run(resume=True), expected)
    assert place.files() == []


@pytest.mark.parametrize(
    ("at", "said"),
    [(1, ""), (7, "['court'] took part in the run that is resumed, but did not answer")],
)
def test_a_run_that_cannot_be_resumed_yet_can_be_tried_again(tmp_path, at, said):
    place = Place(tmp_path)
    place.broken(die_after=at)
    tables = place.tables
    place.tables = {"bank": tables["bank"]}
    place.start |= {"parties": ["bank", "court"], "patience": 1.0}
    assert said in str(place.broken(ConfigError, resume=True))
    place.tables, place.start["patience"] = tables, 30.0
    place.run(resume=True)
    assert place.files() == []


class NewProcesses:
    """An app whose process ends after every message; Flower keeps the state."""

    def __init__(self, strategy):
        self.strategy = strategy

    def __call__(self, message, context):
        app = party_app(self.strategy.party, arbiter=self.strategy.arbiter, storage=FileStorage())
        return app(message, context)


class Changing(FaultyGrid):
    """Has somebody replace a party's file before a round."""

    def __init__(self, grid, app, at, change):
        super().__init__(grid, app)
        self.at, self.change = at, change

    def send_and_receive(self, messages, *, timeout=None):
        if self.rounds + 1 == self.at:
            self.change()
        return super().send_and_receive(messages, timeout=timeout)


def run_on_files(folder, at, change, process=NewProcesses, **start):
    make, data = METHODS["rounds"]
    tables, labels = data()
    strategy = make()
    nodes = []
    for name, table in tables.items():
        table.rename_axis("id").to_csv(folder / f"{name}.csv")
        output = str(folder / f"{name}-out")
        node = {"party": name, "data": str(folder / f"{name}.csv"), "output": output}
        nodes.append(node | {"exchanges": "sums", "policy.alignments": "plain"})
    app = process(strategy)
    with LocalGrid(app, nodes, {"run-name": "night"}) as local:
        grid = Changing(local, app, at, lambda: change(folder / "court.csv"))
        return strategy.start(
            grid=grid, labels=labels, alignment="plain", retries=0,
            parties=list(tables), **start,
        )  # fmt: skip


def other_values(path):
    table = pd.read_csv(path, index_col=0)
    (table + 1.0).to_csv(path)


@pytest.mark.parametrize("kept", [False, True], ids=["no checkpoint", "checkpoint"])
@pytest.mark.parametrize("at", [3, 6])
def test_a_table_that_changes_is_refused_by_any_process(tmp_path, at, kept):
    start = {"checkpoint": tmp_path / "server" / "night"} if kept else {}
    with pytest.raises(PartyError, match="'court': its data have changed since the run began"):
        run_on_files(tmp_path, at, other_values, **start)


def test_the_same_file_written_again_is_the_same_data(tmp_path):
    for name in ("whole", "again"):
        (tmp_path / name).mkdir()
    whole = run_on_files(tmp_path / "whole", 99, None)
    again = run_on_files(tmp_path / "again", 4, lambda path: path.write_bytes(path.read_bytes()))
    np.testing.assert_array_equal(
        again.coefficients["estimate"].to_numpy(), whole.coefficients["estimate"].to_numpy()
    )


def test_the_file_is_digested_once_in_a_process(tmp_path, monkeypatch):
    counted = []
    digest = FileStorage.data_version

    def counting(self, context):
        counted.append(context.node_config["party"])
        return digest(self, context)

    monkeypatch.setattr(FileStorage, "data_version", counting)
    run_on_files(
        tmp_path, 99, None,
        process=lambda s: party_app(s.party, arbiter=s.arbiter, storage=FileStorage()),
    )  # fmt: skip
    assert sorted(counted) == ["bank", "court"]


def test_a_deleted_checkpoint_is_written_again_with_the_digest_of_the_data(tmp_path):
    place = Place(tmp_path)

    class Deleting(Rounds):
        def run(self, federation, *args):
            place.checkpoint("court").unlink()
            super().run(federation, *args)

    place.broken(strategy=Deleting(), die_before=8)
    assert place.checkpoint("court").is_file()
    place.tables["court"] = place.tables["court"] + 1.0
    error = place.broken(PartyError, resume=True)
    assert (error.party, "its data have changed" in str(error)) == ("court", True)


WRONG_KEYS = [
    ({"outptu": "x"}, r"unknown key 'outptu' .*did you mean 'output'\?"),
    ({"pin_all": True}, r"unknown key 'pin_all' .*did you mean 'pin-all'\?"),
    ({"max_epsilon": 1.0}, r"unknown key 'max_epsilon' .*did you mean 'max-epsilon'\?"),
    ({"kinds.age": "count"}, r"unknown key 'kinds.age' .*did you mean 'kind.age'\?"),
    ({"Data": "x"}, r"unknown key 'Data' .*did you mean 'data'\?"),
    ({"kind.": "count"}, r"unknown key 'kind\.'"),
    ({"zzz": 1}, r"unknown key 'zzz' in its node config; nothing reads it"),
    ({"max-epsilon": "much"}, r"max-epsilon = 'much'; expected a whole number or a number"),
    ({"max-epsilon": True}, r"max-epsilon = True; expected"),
    ({"data": 5}, r"data = 5; expected a text"),
]


@pytest.mark.parametrize(("config", "why"), WRONG_KEYS)
def test_keys_that_nobody_reads_are_refused(config, why):
    with pytest.raises(ConfigError, match=rf"party 'bank': .*{why}"):
        check_node_config("party 'bank'", {"party": "bank", **config})


def test_keys_that_are_read_are_not():
    config = {
        "party": "bank", "data": "x.csv", "id-column": 0, "kind.a.b": "count", "pin.court": "x",
        "pin-all": False, "max-epsilon": 1, "partition-id": 0, "num-partitions": 2,
    }  # fmt: skip
    check_node_config("party 'bank'", config)
    assert len({key.name for key in NODE_KEYS}) == len(NODE_KEYS)


class Deep(StepGroup):
    node_keys = (NodeKey("device", (str,), "where networks are trained"),)


class Reader(Party):
    node_keys = (NodeKey("prior.", (float,), "a prior by column"),)
    deep = Uses(Deep)


class Reading(Rounds):
    party = Reader


def test_strategies_and_groups_declare_keys_of_their_own(monkeypatch):
    keys = node_keys_of(Reader)
    assert {key.name for key in keys} == {"device", "prior."}
    config = {"device": "cpu", "prior.x": 0.5}
    check_node_config("x", config, keys)
    # A node has them in its config while it takes part in runs of other strategies, too.
    with monkeypatch.context() as patch:
        patch.setattr(registry, "load_strategy", lambda name: Reading)
        check_node_config("x", config)
    with pytest.raises(ConfigError, match="unknown key 'device'"):
        check_node_config("x", config)
    with pytest.raises(ConfigError, match="did you mean 'device'"):
        check_node_config("x", {"devise": "cpu"}, keys)


@pytest.mark.parametrize("kind", ["parquet", "model.npz"])
def test_a_party_does_not_lose_an_earlier_result(tmp_path, kind):
    earlier = tmp_path / "court-out" / "night" / f"court.{kind}"
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(b"of an earlier run")
    with pytest.raises(PartyError, match=r"'court' failed in step 'hello': .*another run-name"):
        run_on_files(tmp_path, 99, None)
    assert earlier.read_bytes() == b"of an earlier run"


def test_runs_without_a_name_have_folders_of_their_own(tmp_path):
    """They are named by Flower's number of the run."""
    storage = FileStorage()
    for name, taken in (("", None), ("night", tmp_path / "night" / "court.parquet")):
        config = {"party": "court", "output": str(tmp_path)}
        context = Context(7, 1, config, RecordDict(), {"run-name": name})
        storage.save(context, pd.DataFrame({"x": [1.0]}, index=["a"]))
        assert storage.earlier_result(context) == taken


@pytest.mark.parametrize("left", [0, 9])
def test_a_full_disk_is_told_with_path_and_party(tmp_path, monkeypatch, left):
    place, writes = Place(tmp_path), itertools.count()

    def full(file):
        if next(writes) >= left:
            raise OSError(28, "No space left on device")

    nodes_disk = SimpleNamespace(**{**vars(disk), "flush_to_disk": full})
    monkeypatch.setattr(checkpoints, "disk", nodes_disk)  # the server's is not full
    error = place.broken(PartyError)
    assert error.party in ("bank", "court")
    path = place.checkpoint(error.party)
    assert f"party {error.party!r}: its checkpoint {path} cannot be written" in str(error)
    assert "No space left on device" in str(error)
    assert len(place.files()) == (3 if left else 0)
    assert not [p for p in place.files() if p.name.endswith(".new")]
    monkeypatch.undo()
    assert_same(place.run(resume=left > 0), Place(tmp_path / "other").run())


def test_a_result_that_cannot_be_written_names_path_and_party(tmp_path, monkeypatch):
    from flwr_vertical.node import file_storage

    def full(frame, path, mode):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_storage, "write_table", full)
    context = Context(7, 1, {"party": "bank", "output": str(tmp_path)}, RecordDict(), {})
    with pytest.raises(StorageError, match=r"party 'bank': its result .*bank\.parquet cannot be"):
        FileStorage().save(context, pd.DataFrame())


class Silent(FaultyGrid):
    """Lists a node that is dead: Flower reports it lost, or it never answers."""

    dead, answers = 99, False

    def get_node_ids(self):
        return [*super().get_node_ids(), self.dead]

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        lost = [m for m in sent if m.metadata.dst_node_id == self.dead]
        replies = list(super().send_and_receive([m for m in sent if m not in lost]))
        self.asked = getattr(self, "asked", 0) + len(lost)
        return replies + [Message(Error(code=4, reason="it is gone"), reply_to=m) for m in lost]


def test_a_dead_node_that_is_no_party_of_the_run_holds_nobody_up(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "propagate", True)
    expected = Place(tmp_path / "whole").run()
    monkeypatch.setattr("resuming.FaultyGrid", Silent)
    place = Place(tmp_path)
    assert_same(place.run(), expected)
    assert "['node 99'] did not answer the greeting and take no part" in caplog.text
    # Who the parties are decides; without names it might have been one of them.
    place.start["parties"] = None
    error = place.broken(PartyError)
    assert (error.party, "it is gone" in str(error)) == ("node 99", True)
    # With a party absent it may be that one, and the error says so.
    place.start |= {"parties": ["bank", "court", "hospital"], "min_nodes": 2}
    error = place.broken(PartyError)
    assert "of the parties, ['hospital'] have not answered" in str(error)
    assert [p for p in place.files() if p.suffix == ".party"] == []


@contextlib.contextmanager
def largest_file(size):
    """Have the system itself refuse what a file holds beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_closing_the_journal_does_not_hide_why_it_could_not_be_written(tmp_path):
    """What the disk refused is still in the file's buffer, and closing it writes it again."""

    def add_too_much():
        with largest_file(4000), journaled(tmp_path / "night", False, {}) as journal:
            place = {"sequence": 0, "answered": {}, "rows": []}
            journal.add_opening({"bank": {}}, place)
            journal.add_round("add", "digest", {"sum": np.zeros(500)}, {}, place)

    with pytest.raises(StorageError, match=r"the journal .*journal cannot be written: ") as caught:
        add_too_much()
    told = str(caught.value)
    needed = r"\(4\.\d kB are needed, [\d.]+ [MGT]B are free in .*night\); make room"
    assert re.search(needed, told)
    assert "resume=true run-name='night'" in caught.value.__notes__[0]


@pytest.mark.parametrize("who", ["party 'court': its model", "the server's snapshot"])
def test_a_full_disk_at_a_snapshot_is_told_with_path_and_party(tmp_path, monkeypatch, who):
    beginning = "court.party.live-" if who[0] == "p" else ".flwr-vertical-journal.snapshot-"
    opened, full, open_file = [], set(), os.open

    def opening(path, *how, **more):
        descriptor = open_file(path, *how, **more)
        opened.append(Path(path).name)
        (full.add if opened[-1].startswith(beginning) else full.discard)(descriptor)
        return descriptor

    def flush(descriptor):
        if descriptor in full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", flush)
    place = TrainingPlace(tmp_path)
    error = place.broken(PartyError if who[0] == "p" else StorageError)
    assert re.search(
        rf"{who} {tmp_path}.*{re.escape(beginning)}.* cannot be written: No space left on device "
        r"\(\d+.* k?B are needed, .*B are free in .*\); make room",
        str(error),
    )
    assert not list(tmp_path.rglob("*.new"))
    monkeypatch.undo()
    assert_same_model(place.run(resume=True), TrainingPlace(tmp_path / "whole").plain())


def test_a_folder_that_a_neighbour_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    """Python sees it there, and then no longer: it says that something else has the name."""
    folder, is_dir, seen = tmp_path / "run" / ".checkpoint", Path.is_dir, []
    folder.mkdir(parents=True)

    def removed_meanwhile(path, **how):
        if path == folder and not seen:
            seen.append(path)
            path.rmdir()
        return is_dir(path, **how)

    monkeypatch.setattr(Path, "is_dir", removed_meanwhile)
    disk.private_folder(folder)
    assert seen
    assert is_dir(folder)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        disk.private_folder(tmp_path / "file")
