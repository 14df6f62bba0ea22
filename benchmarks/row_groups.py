"""Moments of parties whose tables are folders of Parquet files that they do not hold in memory.

    python benchmarks/row_groups.py [--quick]

Two parties of 10,000,000 rows and 20 columns each, 1.5 GiB, fit `glm` to normal labels over live
channels, each in a process of its own. It prints, of each party and of the server, the most memory
that the system cannot take back (anonymous; what is mapped from the disk is none). Tables, and what
is mapped, lie in the folder for temporary files (`TMPDIR`): 15 GiB.
Target: a party needs 1.5 GiB at most.
"""

import os
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from common import begin, command_line, fit_over_channels, glm_app, memory_gib
from flwr.clientapp import ClientApp

COLUMNS = 20
FILE_ROWS, GROUP_ROWS = 1_000_000, 131_072


def write_folder(folder: Path, n_rows: int, seed: int) -> None:
    """Write a table of normal numbers, some rows at a time."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for start in range(0, n_rows, FILE_ROWS):
        ids = np.arange(start, min(start + FILE_ROWS, n_rows))
        columns = {f"{folder.name}{j}": rng.normal(size=len(ids)) for j in range(COLUMNS)}
        path = folder / f"{start:09d}.parquet"
        pa.parquet.write_table(pa.table({"id": ids, **columns}), path, row_group_size=GROUP_ROWS)


def watch_memory(note: Path) -> None:
    """Write the most anonymous memory of this process, in GiB, to a file, as long as it lives."""

    def watch() -> None:
        peak = 0.0
        while True:
            if (used := memory_gib("RssAnon")) > peak:
                peak = used
                note.write_text(f"{peak:.2f}")
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()


def app(notes: str) -> ClientApp:
    """Return the app of a party, which notes its memory in a folder."""
    watch_memory(Path(notes) / f"party {os.getpid()}")
    return glm_app()


def main() -> None:
    """Run the benchmark."""
    n_rows = 100_000 if begin(command_line(__doc__, "100,000 rows")).quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        tables = {name: Path(folder) / name for name in "ab"}
        for seed, path in enumerate(tables.values()):
            write_folder(path, n_rows, seed)
        notes = Path(folder) / "memory"
        notes.mkdir()
        labels = pd.Series(np.random.default_rng(2).normal(size=n_rows))
        watch_memory(notes / "server")
        seconds, _ = fit_over_channels(tables, labels, partial(app, str(notes)))
        table = 8 * n_rows * COLUMNS / 2**30
        print(f"two parties, {n_rows:,} x {COLUMNS} ({table:.2f} GiB) each: {seconds:.0f} s")
        for note in sorted(notes.iterdir(), key=lambda note: note.name):
            print(f"{note.name.split()[0]:<8} {note.read_text()} GiB of memory at most")


if __name__ == "__main__":
    main()
