"""What benchmarks share: the machine they ran on, seconds and memory, nodes, the command line."""

import argparse
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_vertical import party_app
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.grids import NodeConfig, NodesGrid
from strategies.glm import VerticalGLM

T = TypeVar("T")


def machine_line() -> str:
    """Describe processor, cores, memory, versions and load in one line."""
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    processor = names[0] if names else platform.machine()
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("flwr", "numpy", "scikit-learn"))
    return (
        f"{processor}, {os.cpu_count()} cores, {pages:.0f} GiB; "
        f"Python {platform.python_version()}, {packages}; load {os.getloadavg()[0]:.1f}"
    )


def command_line(doc: str | None, quick: str = "small sizes, for CI") -> argparse.ArgumentParser:
    """Return a parser that knows ``--quick``."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)  # see `alone`
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, and print the machine but in a case's own process."""
    options = parser.parse_args()
    if not options.only:
        print(machine_line() + "\n", flush=True)
    return options


class Timed(NamedTuple, Generic[T]):
    """What an action returned, its seconds, and those of processors, its processes' with them."""

    value: T
    seconds: float
    cpu: float


def timed(action: Callable[[], T]) -> Timed[T]:
    """Take the time of an action."""
    started, used = time.perf_counter(), sum(os.times()[:4])
    value = action()
    return Timed(value, time.perf_counter() - started, sum(os.times()[:4]) - used)


def memory_gib(kind: str = "VmHWM") -> float:
    """Return memory of this process in GiB: the most that it has had, or of another kind.

    ``ru_maxrss`` would count the parent's before ``exec``.
    """
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if kind in line).split()[1]) / 2**20


def alone(file: str, only: str, quick: bool = False) -> str:
    """Run a benchmark's case in a process of its own, and return what it prints."""
    command = [sys.executable, file, "--only", only, *(["--quick"] * quick)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def each_alone(
    file: str, options: argparse.Namespace, cases: Mapping[str, Callable[[], None]]
) -> None:
    """Run every case in a process of its own, so that peaks are its; in that process, the case."""
    if options.only:
        cases[options.only]()
        return
    for case in cases:
        print(alone(file, case, options.quick), end="", flush=True)


def make_parties(n_rows: int, sizes: Sequence[int]) -> tuple[dict[str, pd.DataFrame], Any]:
    """Make correlated normal columns of several parties; also what they have in common."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=n_rows)
    columns = [0.6 * common[:, None] + 0.8 * rng.normal(size=(n_rows, size)) for size in sizes]
    return {f"party-{k}": pd.DataFrame(x).add_prefix("x") for k, x in enumerate(columns)}, common


def glm_app() -> ClientApp:
    """Return the app of a party that fits `glm` to normal labels."""
    strategy = VerticalGLM(family="gaussian", penalty="none")
    return party_app(strategy.party, alignment="plain", protocol=strategy.protocol_of_run())


def fit_over_channels(
    tables: Mapping[str, Path], labels: "pd.Series[float]", make_app: Callable[[], ClientApp]
) -> tuple[float, list[tuple[float, float]]]:
    """Fit `glm` to tables on disk; return its seconds, and what each party used."""
    nodes: list[NodeConfig] = [
        {"party": name, "data": str(path), "output": str(path.with_name(f"{name}-output"))}
        | {"policy.alignments": "plain"}
        for name, path in tables.items()
    ]
    processes = NodeProcesses(make_app, nodes)
    strategy = VerticalGLM(family="gaussian", penalty="none")
    with ChannelGrid(processes, transport="channel") as grid:
        fit = partial(strategy.start, grid=grid, labels=labels, alignment="plain", progress=False)
        seconds = timed(fit).seconds
    return seconds, processes.used()


class NodeProcesses(NodesGrid):
    """Serves each node by a process of its own, as on a federation, without Flower's.

    Parameters
    ----------
    make_app : Callable
        Makes, in such a process, the app of its node; a function of a module.
    nodes : Sequence[NodeConfig]
        The node config of each node.
    """

    def __init__(self, make_app: Callable[[], ClientApp], nodes: Sequence[NodeConfig]) -> None:
        super().__init__(nodes)
        spawn = multiprocessing.get_context("spawn")
        self._pipes: dict[int, Connection[Any, Any]] = {}
        for node_id, context in self.contexts.items():
            self._pipes[node_id], there = spawn.Pipe()
            spawn.Process(target=_serve, args=(there, make_app, context), daemon=True).start()
        for pipe in self._pipes.values():
            pipe.recv()

    def _submit(self, messages: Mapping[str, Message]) -> None:
        for message in messages.values():
            self._pipes[message.metadata.dst_node_id].send(message)

    def _collect(self, numbers: list[str], timeout: float | None) -> list[Message]:
        ready: list[Any] = wait(list(self._pipes.values()), timeout)
        return [pipe.recv() for pipe in ready]

    def _forget(self, numbers: list[str]) -> None:
        """Every message is answered."""

    def used(self) -> list[tuple[float, float]]:
        """End all processes; return seconds of the processor since the start, and GiB beyond it."""
        found = []
        for pipe in self._pipes.values():
            pipe.send(None)
            while not isinstance(told := pipe.recv(), tuple):
                pass  # what answered the invitation
            found.append(told)
        return found


def _serve(
    pipe: "Connection[Any, Any]", make_app: Callable[[], ClientApp], context: Context
) -> None:
    """Answer messages until there is none."""
    app = make_app()
    cpu, peak = time.process_time(), memory_gib()
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        pipe.send(app(message, context))
    pipe.send((time.process_time() - cpu, memory_gib() - peak))
