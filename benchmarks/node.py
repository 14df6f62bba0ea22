"""What a node spends: imports, the greeting of a large table, memory in a fit, its ledger.

    python benchmarks/node.py [--quick]

Each line is a process of its own. First imports, whose bytecode is there: seconds of the processor,
the least of five, and memory. Then the parts of a node's answer to a greeting, with a Parquet file
of 1,000,000 rows of 50 columns and IDs of text, and a fit of `glm` to normal labels, hidden, over
live channels, with a second party of two columns: peaks are above the memory before, in tables.
Then two row sets of 1,000,000 rows enter the node's privacy ledger, as a run opens them; and one
has 10,000 runs: every hundredth opens sums over other rows with one of ten sets of labels, and
predictions; those between repeat the sums of the one before. What repeats is written as a run
writes it, but many in one transaction, since each would wait for the disk.
Last such a fit of two parties whose tables they do not hold in memory: folders of Parquet files,
10,000,000 rows and 20 columns each, 1.5 GiB. What is mapped from the disk does not count there.
Tables, and what is mapped, lie in the folder for temporary files (`TMPDIR`): 15 GiB.
Targets: `import flwr_vertical` below 0.4 s; the greeting below 20 s; a peak of 4 tables, and of 1.5
GiB of a party with a folder; two row sets, and a check after 10,000 runs, below 1 s; a ledger's
file below 100 MB.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from common import Cases, fit_over_channels, memory_gib, run, say, show, watch_memory

from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.privacy_ledger.database import transaction
from flwr_vertical.privacy_ledger.entries import Book, Entry, add_run, note_stream
from flwr_vertical.privacy_ledger.ledger import HELD_BY_ALL, PrivacyLedger
from flwr_vertical.privacy_ledger.row_identities import OwnRows
from flwr_vertical.tables import check_table, read_table

COLUMNS, FEW = 50, 20
GROUPS, LEFT_OUT, REPEATS = 8, 2_000, 100
SETTINGS = {"family": "binomial", "penalty": "scad", "seed": 3}
FILE_ROWS, GROUP_ROWS = 1_000_000, 131_072
IMPORTS = (
    "import flwr_vertical",
    "import flwr",
    "from flwr_vertical import simulate",
    *(f"import apps.client_app, strategies.{name}" for name in ("fknn", "glm", "trees", "cox")),
)
MEASURED = """{}
import resource
status = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, int(status) / 1024)"""


def imports() -> None:
    """Print what imports cost."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path[1:])
    with tempfile.TemporaryDirectory() as folder:
        environment["PYTHONPYCACHEPREFIX"] = folder
        for what in IMPORTS:
            command = [sys.executable, "-c", MEASURED.format(what)]
            measure = partial(subprocess.run, command, env=environment, check=True)
            # The first one compiles.
            told = [measure(capture_output=True, text=True).stdout.split() for _ in range(6)]
            seconds, size = min([float(part) for part in one] for one in told[1:])
            show(what, {"s": seconds, "MiB": size})


def make_ids(n_rows: int) -> "pd.Index[str]":
    """Return IDs of text."""
    return pd.Index([f"customer-{i:09d}" for i in range(n_rows)], name="id")


def write_table(path: Path, n_rows: int, columns: int) -> None:
    """Write a table of normal numbers."""
    child = os.fork()  # so that this process has never held the table
    if not child:
        values = np.random.default_rng(0).normal(size=(n_rows, columns))
        pd.DataFrame(values, index=make_ids(n_rows)).rename(columns=str).to_parquet(path)
        os._exit(0)
    os.waitpid(child, 0)


def greeting(n_rows: int) -> None:
    """Print the parts of a node's answer to a greeting."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_table(path, n_rows, COLUMNS)
        before = memory_gib()
        storage = FileStorage()
        context: Any = type("Context", (), {"node_config": {"party": "a", "data": str(path),
                            "output": folder}, "run_config": {}, "run_id": 1})()  # fmt: skip
        digest = say("digest of the file", partial(storage.data_version, context))
        read = say("read", partial(read_table, path))
        table = read.value
        check = say("check", partial(check_table, table))
        ledger = PrivacyLedger(Path(folder) / "ledger.sqlite", "a")
        hashing = partial(ledger.rows, table.ids, table.frame)
        rows = say("hash rows", partial(ledger.rows_of_version, "1", hashing))
        enter = say("enter the run", partial(ledger.begin, "1", "1", "glm", {}, rows.value))
        seconds = sum(part.seconds for part in (digest, read, check, rows, enter))
        peak = (memory_gib() - before) / (n_rows * COLUMNS * 8 / 2**30)
        figures = {"s": seconds, "tables at most": peak}
        show(f"greeting, {n_rows:,} x {COLUMNS}", figures, "20 s, 4 tables")


def peak_of_fit(n_rows: int, columns: int) -> tuple[float, float]:
    """Return seconds, and the most GiB of a party that fits a regression to normal labels."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {name: Path(folder) / f"{name}.parquet" for name in "ab"}
        for path, width in zip(tables.values(), (columns, 2), strict=True):
            write_table(path, n_rows, width)
        labels = pd.Series(np.random.default_rng(1).normal(size=n_rows), make_ids(n_rows))
        seconds, at_first, at_most = fit_over_channels(tables, labels)
        return seconds, at_most[0] - at_first[0]


def fit(n_rows: int) -> None:
    """Print the peak of a party in a fit."""
    seconds, peak = peak_of_fit(n_rows, COLUMNS)
    tables = peak / (n_rows * COLUMNS * 8 / 2**30)
    figures = {"s": seconds, "tables at most": tables}
    show(f"fit over channels, {n_rows:,} x {COLUMNS}", figures, "4 tables")


def row(n_rows: int) -> None:
    """Print what a row takes in a fit whatever the columns: two tables of 2 columns, compared."""
    few, many = (peak_of_fit(n, 2)[1] for n in (n_rows // 2, n_rows))
    beside = (many - few) * 2**30 / (n_rows / 2) - 2 * 2 * 8  # table and matrix
    show("a row in a fit, beside its cells", {"bytes": beside})


def write_folder(folder: Path, n_rows: int, seed: int) -> None:
    """Write a table of normal numbers as a folder of Parquet files, one after the other."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for start in range(0, n_rows, FILE_ROWS):
        ids = np.arange(start, min(start + FILE_ROWS, n_rows))
        columns = {f"{folder.name}{j}": rng.normal(size=len(ids)) for j in range(FEW)}
        path = folder / f"{start:09d}.parquet"
        pa.parquet.write_table(pa.table({"id": ids, **columns}), path, row_group_size=GROUP_ROWS)


def folders(n_rows: int) -> None:
    """Print the most memory of parties, and of the server, that cannot be taken back."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {name: Path(folder) / name for name in "ab"}
        for seed, path in enumerate(tables.values()):
            write_folder(path, n_rows, seed)
        labels = pd.Series(np.random.default_rng(2).normal(size=n_rows))
        of_server = watch_memory()
        seconds, _, at_most = fit_over_channels(tables, labels)
        table = {"GiB a table": 8 * n_rows * FEW / 2**30}
        show(f"fit to folders, {n_rows:,} x {FEW} each", {"s": seconds} | table)
        for gib in at_most:
            show("  party", {"GiB at most": gib}, "1.5 GiB")
        show("  server", {"GiB at most": of_server()})


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


def ledgers(n_rows: int, runs: int) -> None:
    """Print the times of a privacy ledger's first runs, and of its last."""
    rng, ids = np.random.default_rng(1), make_ids(n_rows)
    frame = pd.DataFrame(rng.normal(size=(n_rows, FEW)), index=ids)
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "two.sqlite", "bank")
        hashing = partial(ledger.rows, ids, frame)
        rows = say(f"hash {n_rows:,} IDs and rows of {FEW} columns, once", hashing).value
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


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    n_rows = 100_000 if options.quick else 1_000_000
    found = {part.__name__: partial(part, n_rows) for part in (greeting, fit, row)}
    found["ledgers"] = partial(ledgers, n_rows, 500 if options.quick else 10_000)
    found["folders"] = partial(folders, n_rows if options.quick else 10_000_000)
    return found if options.quick else {"imports": imports} | found


if __name__ == "__main__":
    run(__doc__, main, "100,000 rows, no imports")
