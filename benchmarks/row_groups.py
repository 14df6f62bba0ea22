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
from common import NodeProcesses, command_line, machine_line
from flwr.clientapp import ClientApp

from flwr_vertical import party_app
from flwr_vertical.channel import ChannelGrid
from strategies.glm import VerticalGLM

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
            lines = Path("/proc/self/status").read_text().splitlines()
            used = int(next(line for line in lines if "RssAnon" in line).split()[1]) / 2**20
            if used > peak:
                peak = used
                note.write_text(f"{peak:.2f}")
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()


def app(notes: str) -> ClientApp:
    """Return the app of a party, which notes its memory in a folder."""
    watch_memory(Path(notes) / f"party {os.getpid()}")
    strategy = VerticalGLM(family="gaussian", penalty="none")
    return party_app(strategy.party, alignment="plain", protocol=strategy.protocol_of_run())


def main() -> None:
    """Run the benchmark."""
    n_rows = 100_000 if command_line(__doc__, "100,000 rows").parse_args().quick else 10_000_000
    print(machine_line(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        nodes: list[dict[str, str]] = []
        for seed, name in enumerate("ab"):
            write_folder(Path(folder) / name, n_rows, seed)
            nodes.append({"party": name, "data": f"{folder}/{name}", "output": f"{folder}/{name}-"})
            nodes[-1]["policy.alignments"] = "plain"
        notes = Path(folder) / "memory"
        notes.mkdir()
        labels = pd.Series(np.random.default_rng(2).normal(size=n_rows))
        processes = NodeProcesses(partial(app, str(notes)), nodes)
        watch_memory(notes / "server")
        started = time.perf_counter()
        with ChannelGrid(processes, transport="channel") as grid:
            strategy = VerticalGLM(family="gaussian", penalty="none")
            strategy.start(grid=grid, labels=labels, alignment="plain", progress=False)
        seconds = time.perf_counter() - started
        table = 8 * n_rows * COLUMNS / 2**30
        print(f"two parties, {n_rows:,} x {COLUMNS} ({table:.2f} GiB) each: {seconds:.0f} s")
        for note in sorted(notes.iterdir(), key=lambda note: note.name):
            print(f"{note.name.split()[0]:<8} {note.read_text()} GiB of memory at most")
        processes.used()


if __name__ == "__main__":
    main()
