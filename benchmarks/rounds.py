"""What a round costs on LocalGrid and RayGrid.

    python benchmarks/rounds.py [--quick]

A round here is a masked private sum of 100 values over five parties, and on RayGrid over a thousand
too: request, key stream, reply. Then runs of 400 rounds over 16 parties, in turn with and without
the page that shows them (``live-page``), which is asked for every second.
"""

import statistics
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import begin, command_line, timed

from apps.live.page import page_of
from apps.live.server import serving
from apps.live.status import LiveStatus
from flwr_vertical import (
    Federation,
    LocalGrid,
    MemoryStorage,
    Party,
    Progress,
    RayGrid,
    Summands,
    Table,
    memory_app,
    party_app,
    step,
)
from flwr_vertical.server.discovery import Presence

TABLE = Table.of(pd.DataFrame({"x": [1.0, 2.5]}))


class Echo(Party):
    """A party with nothing to compute."""

    @step
    def numbers(self, base: Any) -> Summands:
        """Return what it got, for a sum."""
        return Summands({"numbers": base})


def time_rounds(grid: Any, rounds: int, n_parties: int = 5) -> float:
    """Median seconds of a masked round of 100 values."""
    federation = Federation(grid, aggregation="masked", min_nodes=n_parties)
    federation.open()
    base = np.arange(100.0)
    seconds = []
    for _ in range(rounds):
        total, one, _ = timed(lambda: federation.sum("numbers", {"base": base}))
        seconds.append(one)
        assert np.allclose(total["numbers"], n_parties * base)
    return statistics.median(seconds)


def time_run(app: Any, rounds: int, page: bool) -> tuple[float, float, float]:
    """Seconds of a run over 16 parties, with its page or without, and of CPUs; those of a look."""
    base, over = np.arange(100.0), threading.Event()
    status = LiveStatus("rounds", "none", "masked", Presence(0.0))

    def look(address: str) -> None:
        while not over.wait(1.0):
            urllib.request.urlopen(address).read()

    with ExitStack() as stack:
        grid = stack.enter_context(LocalGrid(app, [{"party": f"p{k}"} for k in range(16)]))
        shown = stack.enter_context(Progress("rounds", rounds))
        federation = Federation(grid, aggregation="masked", min_nodes=16)
        federation.on_round = shown.round
        status.watch(federation, shown)
        started, used = time.perf_counter(), time.process_time()
        if page:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            address = stack.enter_context(serving(status, folder / "run"))
            threading.Thread(target=look, args=(address,), daemon=True).start()
            stack.callback(over.set)
        federation.open()
        for i in range(rounds):
            total = federation.sum("numbers", {"base": base})
            shown.step(i + 1, rounds, loss=total["numbers"][0])
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        page_of(status.read())
        began = time.thread_time()
        page_of(status.read())
        return seconds, cpu, time.thread_time() - began


def on_ray(n_parties: int, rounds: int) -> float:
    """Median seconds of a masked round on RayGrid."""
    tables = {f"p{k}": TABLE for k in range(n_parties)}
    with RayGrid(memory_app(Echo), [{"party": name} for name in tables], tables) as grid:
        return time_rounds(grid, rounds, n_parties)


def main() -> None:
    """Parse the command line and run."""
    options = begin(command_line(__doc__, "few rounds, for CI"))
    rounds = 50 if options.quick else 500
    app = party_app(Echo, storage=MemoryStorage({f"p{k}": TABLE for k in range(16)}))
    with LocalGrid(app, [{"party": f"p{k}"} for k in range(5)]) as grid:
        print(f"LocalGrid, 5 parties: {1e3 * time_rounds(grid, rounds):6.2f} ms a round, target 5")
    length, pairs = (100, 1) if options.quick else (400, 12)
    time_run(app, 10, True)  # the first one imports
    runs = [[time_run(app, length, page) for page in (False, True)] for _ in range(pairs)]
    without, beside = np.swapaxes(runs, 0, 1)
    wall, cpu, _ = np.median(beside / without, axis=0)
    print(
        f"LocalGrid, 16 parties, {length} rounds: {np.median(without[:, 0]):.2f} s; with the page "
        f"{wall:.3f} of the time, {cpu:.3f} of the CPUs' time, target 1.01; a look each second "
        f"takes {np.median(beside[:, 2]):.2%} of a CPU"
    )
    print(f"RayGrid,   5 parties: {1e3 * on_ray(5, rounds):6.2f} ms a round, target 20")
    n_parties, count = (70, 3) if options.quick else (1_000, 100)
    median, seconds, _ = timed(lambda: on_ray(n_parties, count))
    print(
        f"RayGrid, {n_parties:,} parties, {count} rounds with Ray's start: {seconds:.0f} s, "
        f"target 60; a round {median:.2f} s"
    )


if __name__ == "__main__":
    main()
