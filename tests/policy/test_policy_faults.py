"""A ledger that cannot be used: nothing leaves, and the error says how to go on."""

import os
import resource
import shutil
import signal
import sqlite3
import time

import numpy as np
import pandas as pd
import pytest
from databases import fill_sqlite
from flipped_bits import DAMAGED, REFUSED, fill, open_ledger, outcomes

from apps.cli.main import main
from flwr_vertical.errors import LedgerDamagedError, LedgerError, PolicyError, ProtocolError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.database import transaction
from flwr_vertical.privacy_ledger.entries import digest_of
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.privacy_ledger.summary import LedgerSummary

IDS = pd.Index([f"customer-{i}" for i in range(200)], name="id")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A ledger of two runs."""
    path = tmp_path_factory.mktemp("ledger") / "bank.privacy-ledger.sqlite"
    ledger = PrivacyLedger(path, "bank", Policy(min_rows=10), clock=lambda: 1e9)
    rows = ledger.rows(IDS)
    for number in range(2):
        run = f"run-{number}"
        ledger.begin(run, run, "vfem", {}, rows)
        ledger.check_and_note_rows(run, rows, np.arange(200) % (number + 1), 10)
    return path


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copy(whole, tmp_path / whole.name)


def greet(path, clock=lambda: 1e9, party="bank", ids=IDS, patience=5.0):
    ledger = PrivacyLedger(path, party, clock=clock, patience=patience)
    rows = ledger.rows(ids)
    ledger.begin("new", "new", "glm", {}, rows)
    return ledger, rows


def write_bytes(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def overwrite_array(path):
    rows = PrivacyLedger(path, "bank").rows(IDS)
    at = path.read_bytes().find(rows.keys[40:42].tobytes())
    assert at > 0
    write_bytes(path, at, b"damage!!")


def change(sql):
    return lambda path: fill_sqlite(path, sql)


DAMAGES = {
    "array": overwrite_array,
    "entry": change("UPDATE entries SET n_rows = 3 WHERE id = 1"),
    "entry gone": change("DELETE FROM entries WHERE id = 1"),
    "last entry gone": change("DELETE FROM entries WHERE id = 2"),
    "run": change("UPDATE runs SET greetings = 7"),
    "known": change("DELETE FROM known WHERE digest = (SELECT max(digest) FROM known)"),
    "array gone": change("DELETE FROM arrays WHERE name = 'atoms '"),
    "array of another name": change("UPDATE arrays SET name = 'atoms x' WHERE name = 'atoms '"),
    "secret": change("UPDATE meta SET value = 'SIXTEEN-LETTERS!' WHERE key = 'secret'"),
    "seal gone": change("DELETE FROM seals WHERE name = 'streams'"),
    "type of an array": change("UPDATE arrays SET data = 'text', checksum = 1.5"),
    "definition that is no text": lambda path: write_bytes(
        path, path.read_bytes().find(b"CREATE TABLE streams") + 7, b"\xc1"
    ),
    "table gone": change("DROP TABLE streams"),
    "column of another name": change("ALTER TABLE streams RENAME COLUMN content TO contents"),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("nothing was told, I promise\n" * 300),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "page": lambda path: write_bytes(path, 4096, os.urandom(2048)),
    "other database": lambda path: (path.unlink(), change("CREATE TABLE x (y)")(path)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_refused(path, damage, capsys):
    damage(path)
    match = r"\.sqlite is damaged \(.*nothing leaves.*Put back its last copy"
    with pytest.raises(LedgerDamagedError, match=match):
        greet(path)
    assert main(["privacy-ledger", str(path)]) == 1
    assert "is damaged" in capsys.readouterr().err


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("filled") / "bank.privacy-ledger.sqlite"
    fill(path)
    return path


def test_bits_that_flip_loosen_nothing(filled, tmp_path):
    """A sample of what `python tests/kit/flipped_bits.py` tries."""
    n_bits = 8 * filled.stat().st_size
    bits = np.random.default_rng(0).choice(n_bits, 8, replace=False)
    data = filled.read_bytes()
    # And of the file's header, of a table's definition, and of the name of a key stream.
    at = 8 * data.find(b"CREATE TABLE streams") + 100
    stream = 8 * data.find(digest_of("stream", "run-3 stream 5")) + 8 * 15
    found = outcomes(filled, [*bits.tolist(), 8 * 18, 8 * 60, at, stream], tmp_path)
    assert set(found) <= {REFUSED, DAMAGED}
    assert found[DAMAGED] >= 4


def test_a_bit_of_a_key_stream_is_noticed(filled, tmp_path):
    path = shutil.copy(filled, tmp_path / filled.name)
    connection = sqlite3.connect(path)
    (name,) = connection.execute("SELECT name FROM streams LIMIT 1 OFFSET 30").fetchone()
    connection.close()
    at = path.read_bytes().find(name)
    write_bytes(path, at + 15, bytes([name[15] ^ 1]))
    with pytest.raises(LedgerDamagedError, match="rows of table 'streams' are not those that were"):
        open_ledger(path)


def test_damage_between_two_greetings_of_a_process_is_noticed(path):
    ledger, rows = greet(path)
    ledger.begin("next", "next", "glm", {}, rows)
    change("DELETE FROM known WHERE digest = (SELECT max(digest) FROM known)")(path)
    with pytest.raises(LedgerDamagedError, match="table 'known' has 1 rows, and 2 were written"):
        ledger.begin("last", "last", "glm", {}, rows)


@pytest.mark.parametrize("version", [1, 7])
def test_one_of_another_version_is_refused(path, version):
    change(f"PRAGMA user_version = {version}")(path)
    with pytest.raises(LedgerError, match=f"has format {version}, and this version of flwr-vert"):
        greet(path)


def test_that_of_another_party_or_table_is_refused(path):
    with pytest.raises(LedgerError, match=r"belongs to party 'bank'.*folder of this party's own"):
        greet(path, party="court")
    with pytest.raises(LedgerError, match=r"none of the 2 rows .* belongs to another table"):
        greet(path, ids=pd.Index(["a", "b"]))
    greet(path, ids=IDS[:1].append(pd.Index(["a", "b"])))


def test_a_clock_that_went_back_is_refused(path):
    match = (
        r"is 3,600 s before the last entry .*Set the clock right\. If it is right, and was ahead "
        r"before: flwr-vertical privacy-ledger \S+\.sqlite --repair-clock"
    )
    with pytest.raises(LedgerError, match=match):
        greet(path, clock=lambda: 1e9 - 3600)
    greet(path, clock=lambda: 1e9 - 10)  # as time servers correct it


def test_a_clock_that_was_ahead_is_repaired_on_record_and_no_budget_comes_back(path, capsys):
    year, now = 365 * 86_400, time.time()
    policy = Policy(min_rows=10, epsilon_total=2.0, predictions=12, vectors=1)

    def node(clock=time.time):
        ledger = PrivacyLedger(path, "bank", policy, clock=clock)
        return ledger, ledger.rows(IDS)

    ledger, rows = node(lambda: now + year)
    ledger.begin("ahead", "ahead", "glm", {}, rows)
    ledger.spend_epsilon("ahead", 1.5, release=b"ranks", what="ranks with noise")
    everyone = np.full(200, True)
    ledger.open_bits(
        "ahead", rows, everyone, 12, content=b"p", predictions=True, what="predictions"
    )
    ledger.check_and_note_rows("ahead", rows, np.zeros(200, int), 10, n_vectors=1, commitment=b"y")
    ledger.note_stream("ahead", "stream", b"columns")
    ledger, rows = node()
    with pytest.raises(LedgerError, match="--repair-clock"):
        ledger.begin("now", "now", "glm", {}, rows)
    before = LedgerSummary.of(path)

    assert main(["privacy-ledger", str(path.parent), "--repair-clock"]) == 0
    assert "clock repaired by the owner: the last entry was of" in capsys.readouterr().out
    after = LedgerSummary.of(path)
    assert (after.state, after.entries[:-1]) == (before.state, before.entries)
    assert (after.entries[-1]["kind"], after.runs[-1]["name"]) == ("clock", "clock repair")
    assert main(["privacy-ledger", str(path.parent)]) == 0
    assert "clock repaired by the owner" in capsys.readouterr().out

    ledger, rows = node()
    ledger.begin("now", "now", "glm", {}, rows)
    ledger.begin("ahead", "ahead", "glm", {}, rows)  # resumed
    for run in ("now", "ahead"):
        with pytest.raises(PolicyError, match=r"policy\.epsilon-total"):
            ledger.spend_epsilon(run, 1.0, release=b"again", what="ranks with noise")
        with pytest.raises(PolicyError, match=r"policy\.predictions"):
            ledger.open_bits(run, rows, everyone, 1, content=b"q", predictions=True, what="more")
        with pytest.raises(PolicyError, match=r"policy\.vectors"):
            ledger.check_and_note_rows(
                run, rows, np.zeros(200, int), 10, n_vectors=1, commitment=b"z"
            )
        with pytest.raises(ProtocolError, match="hides one content only"):
            ledger.note_stream(run, "stream", b"others")

    # The clock of later entries counts again, and a clock that is right has nothing to repair.
    with pytest.raises(LedgerError, match="before the last entry"):
        node(lambda: now - 3600)[0].begin("early", "early", "glm", {}, rows)
    assert main(["privacy-ledger", str(path.parent), "--repair-clock"]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    assert [entry["kind"] for entry in LedgerSummary.of(path).entries].count("clock") == 1


def test_one_that_another_process_keeps_open_is_refused_after_a_while(path):
    with (
        transaction(path, "other", 5.0),
        pytest.raises(LedgerError, match=r"another process has kept .* more than 0\.1 s"),
    ):
        greet(path, patience=0.1)
    greet(path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"cannot be written \(.*\), so nothing leaves"):
        greet(tmp_path / "file" / "bank.privacy-ledger.sqlite")
    with pytest.raises(LedgerError, match="cannot be written"):
        greet(tmp_path)


def test_a_full_disk_leaves_the_entries_before(path):
    """The system refuses the file's growth, as on a full disk."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            ledger, _ = greet(path)
            more = ledger.rows(pd.Index([f"customer-{i}" for i in range(20_000)]))
            ledger.check_and_note_rows("new", more, np.zeros(20_000, int), 10)
        except LedgerError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as file:
        assert "cannot be written" in file.read()
    ledger, rows = greet(path)
    assert ledger.check_and_note_rows("new", rows, np.arange(200) % 2, 10).smallest == 0


def test_a_run_that_did_not_greet_tells_nothing(path):
    ledger, rows = greet(path)
    with pytest.raises(ProtocolError, match="no run 'stranger' yet"):
        ledger.check_and_note_rows("stranger", rows, np.zeros(200, int), 10)
    with pytest.raises(ProtocolError, match="group for each of 200 own rows"):
        ledger.check_and_note_rows("new", rows, np.zeros(3, int), 10)


def test_refusals_are_written_down_but_not_for_ever(path):
    ledger, rows = greet(path)
    for _ in range(25):
        with pytest.raises(ValueError, match=r"policy\.min-rows"):
            ledger.check_and_note_rows("new", rows, np.where(np.arange(200) == 7, 0, -1), 10)
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT what FROM entries WHERE kind = 'refused'").fetchall()
    connection.close()
    assert len(found) == 20
    assert "policy.min-rows" in found[0][0]
