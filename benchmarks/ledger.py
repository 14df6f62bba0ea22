"""What a check of a node's privacy ledger costs, and how large its file becomes.

    python benchmarks/ledger.py [--quick]

First two row sets of 1,000,000 rows, as a run opens them. Then a ledger of 10,000 runs: every
hundredth opens sums over other rows with one of ten sets of labels, and predictions; those between
repeat the sums of the one before. What repeats is written as a run writes it, but many in one
transaction, since each would wait for the disk. Targets: two sets below 1 s; a check after 10,000
runs below 1 s; a file below 100 MB.
"""

import tempfile
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from common import run, say, show

from flwr_vertical.privacy_ledger.database import transaction
from flwr_vertical.privacy_ledger.entries import Book, Entry, add_run, note_stream
from flwr_vertical.privacy_ledger.ledger import HELD_BY_ALL, PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import OwnRows

GROUPS, COLUMNS, LEFT_OUT, REPEATS = 8, 20, 2_000, 100
SETTINGS = {"family": "binomial", "penalty": "scad", "seed": 3}


def two_sets(ledger: PrivacyLedger, rows: OwnRows, rng: np.random.Generator) -> float:
    """Open sums over all rows by group, and over all but a few; return the seconds."""
    ledger.begin("first", "first", "vfem", {}, rows)
    group = rng.integers(0, GROUPS, len(rows))
    fewer = group.copy()
    fewer[rng.choice(len(rows), LEFT_OUT, replace=False)] = -1
    total = 0.0
    for name, sets in (("first", group), ("second", fewer)):
        enter = partial(ledger.check_and_note_rows, "first", rows, sets, 100, n_vectors=1)
        what = f"check and entry of the {name} set of {len(rows):,} rows"
        total += say(what, partial(enter, commitment=b"labels")).seconds
    return total


def many_runs(ledger: PrivacyLedger, rows: OwnRows, runs: int, rng: np.random.Generator) -> None:
    """Fill the ledger with runs; each that is new leaves out another block of rows."""
    group = rng.integers(0, GROUPS, len(rows))
    block = np.arange(len(rows)) % 64
    for i in range(0, runs, REPEATS):
        token, left = f"run {i}", block == int(rng.integers(0, 64))
        ledger.begin(token, f"study-{i}", "glm", SETTINGS, rows)
        own, labels = np.where(left, -1, group), b"labels %d" % (i // REPEATS % 10)
        ledger.check_and_note_rows(token, rows, own, 100, n_vectors=1, commitment=labels)
        ledger.note_stream(token, f"columns of run {i}", rows.digest)
        ledger.open_bits(
            token, rows, left, 1e-3, content=b"%d" % i, predictions=True, what="predictions"
        )
        entry = Entry(
            "rows", "server", "sums over groups of rows (again)", len(rows), colluding=HELD_BY_ALL
        )
        with transaction(ledger.path, "benchmark", 30.0) as connection:
            book = Book(connection, ledger.path, "benchmark")
            for k in range(i + 1, min(i + REPEATS, runs)):
                token = f"run {k}"
                add_run(connection, token, f"study-{k}", "glm", SETTINGS, time.time())
                number = book.run(token)
                book.add(number, time.time(), entry)
                note_stream(connection, number, f"columns of run {k}", rows.digest, "benchmark")


def main(options: Namespace) -> None:
    """Print the times of a ledger's first runs, and of its last."""
    n_rows, runs = (100_000, 500) if options.quick else (1_000_000, 10_000)
    rng = np.random.default_rng(1)
    ids = pd.Index([f"customer-{i:09d}" for i in range(n_rows)], name="id")
    frame = pd.DataFrame(rng.normal(size=(n_rows, COLUMNS)), index=ids)
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "two.sqlite", "bank")
        hashing = partial(ledger.rows, ids, frame)
        rows = say(f"hash {n_rows:,} IDs and rows of {COLUMNS} columns, once", hashing).value
        ledger.rows_of_version("one", lambda: rows)
        again = partial(ledger.rows_of_version, "one", hashing)
        say("the same rows in another process, from the ledger", again)
        show("two sets", {"s": two_sets(ledger, rows, rng)}, "1 s")

        ledger = PrivacyLedger(Path(folder) / "many.sqlite", "bank")
        rows = ledger.rows_of_version("one", lambda: ledger.rows(ids, frame))
        say(f"fill a ledger with {runs:,} runs", partial(many_runs, ledger, rows, runs, rng))
        block = np.arange(n_rows) % 64
        sets = np.where(block == 63, -1, block // 8)
        begun = partial(ledger.begin, "new", "new", "vfem", {}, rows)
        entry = partial(ledger.check_and_note_rows, "new", rows, sets, 100, n_vectors=1)
        seconds = (
            say("greeting of a new run, which checks the whole file", begun).seconds
            + say("check and entry of a new run with other rows and labels", entry).seconds
        )
        size = ledger.path.stat().st_size / 1e6
        show(f"after {runs:,} runs", {"s": seconds, "MB": size}, "1 s, 100 MB")


if __name__ == "__main__":
    run(__doc__, main, "100,000 rows, 500 runs")
