"""A ledger that cannot be used: nothing leaves, and the error says how to go on."""

import os
import resource
import shutil
import signal
import sqlite3

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import LedgerError, ProtocolError
from flwr_vertical.policy.file import transaction
from flwr_vertical.policy.ledger import PrivacyLedger
from flwr_vertical.policy.record import Policy

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


def test_a_whole_one_is_used(path):
    _, rows = greet(path)
    assert len(rows.keys) == len(IDS)


def write_bytes(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def overwrite_array(path):
    data = path.read_bytes()
    rows = PrivacyLedger(path, "bank").rows(IDS)
    at = data.find(rows.keys[40:42].tobytes())
    assert at > 0
    write_bytes(path, at, b"damage!!")


def change(sql):
    def do(path):
        connection = sqlite3.connect(path)
        connection.execute(sql)
        connection.commit()
        connection.close()

    return do


DAMAGES = {
    "array": overwrite_array,
    "entry": change("UPDATE entries SET n_rows = 3 WHERE id = 1"),
    "entry gone": change("DELETE FROM entries WHERE id = 1"),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("nothing was told, I promise\n" * 300),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "page": lambda path: write_bytes(path, 4096, os.urandom(2048)),
    "other database": lambda path: (path.unlink(), change("CREATE TABLE x (y)")(path)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_refused(path, damage):
    damage(path)
    with pytest.raises(LedgerError, match=r"is damaged .*nothing leaves.*Put back its last copy"):
        greet(path)


def test_one_of_a_newer_version_is_refused(path):
    change("PRAGMA user_version = 7")(path)
    with pytest.raises(LedgerError, match="has format 7, and this version of flwr-vertical reads"):
        greet(path)


def test_that_of_another_party_or_table_is_refused(path):
    with pytest.raises(LedgerError, match=r"belongs to party 'bank'.*folder of this party's own"):
        greet(path, party="court")
    with pytest.raises(LedgerError, match=r"none of the 2 rows .* belongs to another table"):
        greet(path, ids=pd.Index(["a", "b"]))
    greet(path, ids=IDS[:1].append(pd.Index(["a", "b"])))


def test_a_clock_that_went_back_is_refused(path):
    with pytest.raises(LedgerError, match=r"is 3,600 s before the last entry.*Set the clock right"):
        greet(path, clock=lambda: 1e9 - 3600)
    greet(path, clock=lambda: 1e9 - 10)  # as time servers correct it


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
