"""What a node spends: imports, the greeting of a large table, its memory in a fit.

    python benchmarks/start.py [--quick]

Each line is a process of its own. First imports, whose bytecode is there: seconds of the processor,
the least of five, and memory. Then the parts of a node's answer to a greeting, with a Parquet file
of 1,000,000 rows of 50 columns and IDs of text, and a fit of `glm` to normal labels, hidden, over
live channels, with a second party of two columns: peaks are above the memory before, in tables.
Targets: `import flwr_vertical` below 0.4 s; the greeting below 20 s; a peak of 4 tables.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import T, begin, command_line, each_alone, fit_over_channels, glm_app, memory_gib, timed

from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.privacy_ledger.ledger import PrivacyLedger
from flwr_vertical.tables import check_table, read_table

COLUMNS = 50
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


def imports(folder: str) -> None:
    """Print what imports cost."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": folder, "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    for what in IMPORTS:
        command = [sys.executable, "-c", MEASURED.format(what)]
        found = []
        for _ in range(6):  # the first one compiles
            done = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
            found.append([float(part) for part in done.stdout.split()])
        seconds, size = min(found[1:])
        print(f"{what:<48} {seconds:6.2f} s, {size:4.0f} MiB")


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
    table_gib = n_rows * COLUMNS * 8 / 2**30
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_table(path, n_rows, COLUMNS)
        before = memory_gib()
        total = np.zeros(2)

        def say(what: str, call: Callable[[], T]) -> T:
            found, own, cpu = timed(call)
            total[:] += own, cpu
            peak = (memory_gib() - before) / table_gib
            print(f"{what:<48} {own:6.2f} s (processor {cpu:5.2f}), peak {peak:.1f} tables")
            return found

        storage = FileStorage()
        context: Any = type("Context", (), {"node_config": {"party": "a", "data": str(path),
                            "output": folder}, "run_config": {}, "run_id": 1})()  # fmt: skip
        say("digest of the file", partial(storage.data_version, context))
        table = say("read", partial(read_table, path))
        say("check", partial(check_table, table))
        ledger = PrivacyLedger(Path(folder) / "ledger.sqlite", "a")
        hashing = partial(ledger.rows, table.ids, table.frame)
        rows = say("hash rows", partial(ledger.rows_of_version, "1", hashing))
        say("enter the run", partial(ledger.begin, "1", "1", "glm", {}, rows))
        print(f"{n_rows:,} x {COLUMNS}: {total[0]:.1f} s (processor {total[1]:.1f} s)")


def peak_of_fit(n_rows: int, columns: int) -> tuple[float, float]:
    """Return seconds, and the most GiB of a party that fits a regression to normal labels."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {name: Path(folder) / f"{name}.parquet" for name in "ab"}
        for path, width in zip(tables.values(), (columns, 2), strict=True):
            write_table(path, n_rows, width)
        labels = pd.Series(np.random.default_rng(1).normal(size=n_rows), make_ids(n_rows))
        seconds, used = fit_over_channels(tables, labels, glm_app)
        return seconds, used[0][1]


def fit(n_rows: int) -> None:
    """Print the peak of a party in a fit."""
    seconds, peak = peak_of_fit(n_rows, COLUMNS)
    tables = peak / (n_rows * COLUMNS * 8 / 2**30)
    print(f"fit over channels, {n_rows:,} x {COLUMNS}: {seconds:.1f} s, peak {tables:.1f} tables")


def row(n_rows: int) -> None:
    """Print what a row takes in a fit whatever the columns: two tables of 2 columns, compared."""
    few, many = (peak_of_fit(n, 2)[1] for n in (n_rows // 2, n_rows))
    beside = (many - few) * 2**30 / (n_rows / 2) - 2 * 2 * 8  # table and matrix
    print(f"a row in a fit, beside its cells: {beside:.0f} bytes")


def main() -> None:
    """Run the benchmark."""
    options = begin(command_line(__doc__, "100,000 rows, no imports"))
    if not (options.quick or options.only):
        with tempfile.TemporaryDirectory() as folder:
            imports(folder)
    n_rows = 100_000 if options.quick else 1_000_000
    cases = {part.__name__: partial(part, n_rows) for part in (greeting, fit, row)}
    each_alone(__file__, options, cases)


if __name__ == "__main__":
    main()
