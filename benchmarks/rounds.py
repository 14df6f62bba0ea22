"""What a round costs on LocalGrid and RayGrid, and over live channels beside plain messages.

    python benchmarks/rounds.py [--quick] [--parties 3,16] [--rounds 50] [--plain-rounds 2]

On the grids it is a masked private sum of 100 values over five parties, and on RayGrid over a
thousand too: request, key stream, reply. Then runs of 400 rounds over 16 parties, in turn with and
without the page that shows them (``live-page``), which is made every second.

For channels a SuperLink and a SuperNode per party are started on this machine, with homes of their
own, and stopped at the end: Flower's own SuperNodes, then those of `flwr-vertical`. A round sends
as many float64 values to every party and gets them back. `--quick` times the channels alone, to
parties in processes that are there already; the other options are of channels alone.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import Cases, NodeProcesses, run, show, timed
from flwr.clientapp import ClientApp

from apps.live.page import page_of
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

ROOT = Path(__file__).parents[1]
ECHO = Path(__file__).with_name("channel_app")
sys.path[:0] = [str(ECHO), str(ROOT / "tests" / "kit")]

from channel_bench import Figures, client, measure  # noqa: E402
from deployments import Deployment  # noqa: E402

TABLE = Table.of(pd.DataFrame({"x": [1.0, 2.5]}))


class Echo(Party):
    """A party with nothing to compute."""

    @step
    def numbers(self, base: Any) -> Summands:
        """Return what it got, for a sum."""
        return Summands({"numbers": base})


PARTIES = [{"party": f"p{k}"} for k in range(16)]
APP = party_app(Echo, storage=MemoryStorage({party["party"]: TABLE for party in PARTIES}))


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


@contextmanager
def looked_at(status: LiveStatus) -> Iterator[None]:
    """Make a run's page each second, as a browser that is open asks for it."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            page_of(status.read())

    threading.Thread(target=look, daemon=True).start()
    yield
    over.set()


def time_run(rounds: int, page: bool) -> tuple[float, float, float]:
    """Seconds of a run over 16 parties, with its page or without, and of CPUs; those of a look."""
    base, status = np.arange(100.0), LiveStatus("rounds", "none", "masked", Presence(0.0))
    with LocalGrid(APP, PARTIES) as grid, Progress("rounds", rounds) as shown:
        federation = Federation(grid, aggregation="masked", min_nodes=16)
        federation.on_round = shown.round
        status.watch(federation, shown)

        def whole() -> None:
            federation.open()
            for i in range(rounds):
                total = federation.sum("numbers", {"base": base})
                shown.step(i + 1, rounds, loss=total["numbers"][0])

        with looked_at(status) if page else nullcontext():
            _, seconds, cpu = timed(whole)
    page_of(status.read())
    return seconds, cpu, timed(lambda: page_of(status.read())).seconds


def local(rounds: int) -> None:
    """Print a round's time on LocalGrid."""
    with LocalGrid(APP, PARTIES[:5]) as grid:
        show("LocalGrid, 5 parties", {"ms a round": 1e3 * time_rounds(grid, rounds)}, "5 ms")


def page(rounds: int, pairs: int) -> None:
    """Print what the page of a run costs it."""
    time_run(10, True)  # the first one imports
    runs = [[time_run(rounds, shown) for shown in (False, True)] for _ in range(pairs)]
    without, beside = np.swapaxes(runs, 0, 1)
    wall, cpu, _ = np.median(beside / without, axis=0)
    with_page = {"of the time": wall, "of the CPUs' time": cpu}
    look = {"ms a look": 1e3 * np.median(beside[:, 2])}
    show(f"LocalGrid, 16 parties, {rounds} rounds", {"s": np.median(without[:, 0])})
    show("  with the page", with_page | look, "1.01 of the time")


def on_ray(n_parties: int, rounds: int, target: str) -> None:
    """Print a round's time on RayGrid, and that of all with Ray's start."""
    tables = {f"p{k}": TABLE for k in range(n_parties)}

    def start() -> float:
        with RayGrid(memory_app(Echo), [{"party": name} for name in tables], tables) as grid:
            return time_rounds(grid, rounds, n_parties)

    median, seconds, _ = timed(start)
    figures = {"ms a round": 1e3 * median, f"s for {rounds} rounds with Ray's start": seconds}
    show(f"RayGrid, {n_parties:,} parties", figures, target)


def echo_app() -> ClientApp:
    """Return the app of a node."""
    return client


def without_flower(n: int, rounds: int) -> Figures:
    """Measure with a process for each party, started before."""
    config = {"parties": n, "rounds": rounds, "plain-rounds": 0, "sizes": "100,10000,200000"}
    agreed = {"policy.aggregations": "plain", "policy.min-parties": 1}
    grid = NodeProcesses(echo_app, [{"party": f"p{k}"} | agreed for k in range(n)])
    found = measure(grid, config | {"transport": "channel"})
    grid.used()
    return found


def on_deployment(n: int, rounds: int, plain_rounds: int, supernode: tuple[str, ...]) -> Figures:
    """Measure on the Deployment Runtime, on loopback."""
    with tempfile.TemporaryDirectory(prefix="flwr-channels-") as folder:
        home = Path(folder)
        agreed = "policy.aggregations='plain' policy.min-parties=1"
        deployment = Deployment(home, {f"p{k}": agreed for k in range(n)}, supernode)
        results = home / "found.json"
        config = f"parties={n} rounds={rounds} plain-rounds={plain_rounds} results='{results}'"
        # Unlike `flwr run --stream` it waits for the end, if a busy SuperLink closes the log.
        command = [sys.executable, "-m", "apps.cli.main", "run", str(ECHO), "trial", "-c", config]
        try:
            time.sleep(5.0 * n)  # the nodes have started by then, on an idle machine
            env = deployment.flower.env
            answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
        finally:
            deployment.stop()
        if not results.exists():
            raise SystemExit(f"the run failed:\n{answer.stdout[-4000:]}{answer.stderr[-2000:]}")
        found: Figures = json.loads(results.read_text())
        return found


def show_all(where: str, measured: Callable[[], Figures]) -> None:
    """Print what was measured."""
    for what, figures in measured().items():
        show(f"{where}, {what}", figures)


def main(options: Namespace) -> Cases:
    """Return the cases by name."""
    rounds = 50 if options.quick else 500
    found = {
        "local": partial(local, rounds),
        "page": partial(page, *((100, 1) if options.quick else (400, 12))),
        "ray": partial(on_ray, 5, rounds, "20 ms a round"),
        "thousand": partial(on_ray, *((70, 3) if options.quick else (1_000, 100)), "60 s in all"),
    }
    if options.quick:
        quick = partial(without_flower, 3, max(20, options.rounds))
        return found | {"channels": partial(show_all, "without Flower, 3 parties", quick)}
    for n in map(int, options.parties.split(",")):
        for supernode in ("flower-supernode", "flwr-vertical supernode"):
            counts = options.rounds, options.plain_rounds
            measured = partial(on_deployment, n, *counts, tuple(supernode.split()))
            found[f"{n} {supernode}"] = partial(show_all, f"{supernode}, {n} parties", measured)
    return found


if __name__ == "__main__":
    counts = {"rounds": (50, "of each size"), "plain_rounds": (2, "by Flower's messages")}
    parties = ("3,16", "how many, one after the other")
    run(__doc__, main, "few rounds, without Flower's processes", parties=parties, **counts)
