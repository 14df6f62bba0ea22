"""What benchmarks share: the command line, seconds and memory, lines of the table, nodes."""

import argparse
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_vertical import party_app
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.grids import LocalGrid, NodeConfig
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


Cases = Mapping[str, Callable[[], Any]]


def run(
    doc: str | None,
    main: Callable[[argparse.Namespace], Cases | None],
    quick: str = "small sizes, for CI",
    **others: tuple[Any, str],
) -> None:
    """Read the command line, print the machine, and run.

    `doc` begins with the command's help. `main` prints lines by `show`, or returns cases that do,
    each of which gets a process of its own, so that peaks are its. `quick` says what ``--quick``
    does, `others` have the default of each other option and its help.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", default="", help="the name of a case")
    for name, (default, says) in others.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=says)
    options = parser.parse_args()
    if not options.only:
        print(machine_line() + "\n", flush=True)
    cases = main(options) or {}
    if options.only:
        (cases.get(options.only) or parser.error(f"--only: one of {[*cases]}"))()
        return
    for case in cases:
        subprocess.run([sys.executable, *sys.argv, "--only", case], check=True)


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


def show(what: str, figures: Mapping[str, float], target: str = "") -> None:
    """Print a line of the table: figures by their units, to four digits, and the target."""
    told = [
        f"{figure:,.0f} {unit}" if figure >= 1000 else f"{figure:.4g} {unit}"
        for unit, figure in figures.items()
    ]
    print(f"{what:<48} " + ", ".join(told) + (f"; target {target}" if target else ""), flush=True)


def say(what: str, action: Callable[[], T], target: str = "") -> Timed[T]:
    """Print the time that an action takes."""
    found = timed(action)
    show(what, {"s": found.seconds, "s of the processor": found.cpu}, target)
    return found


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
    tables: Mapping[str, Path], labels: "pd.Series[float]"
) -> tuple[float, list[float], list[float]]:
    """Fit `glm` to tables on disk; return seconds, and each party's GiB: at first, and at most."""
    nodes: list[NodeConfig] = [
        {"party": name, "data": str(path), "output": str(path.with_name(f"{name}-output"))}
        | {"policy.alignments": "plain"}
        for name, path in tables.items()
    ]
    processes = NodeProcesses(glm_app, nodes)
    at_first = processes.used()
    strategy = VerticalGLM(family="gaussian", penalty="none")
    with ChannelGrid(processes, transport="channel") as grid:
        fit = partial(strategy.start, grid=grid, labels=labels, alignment="plain", progress=False)
        seconds = timed(fit).seconds
    return seconds, at_first, processes.used()


class NodeProcesses(LocalGrid):
    """Serves each node by a process of its own, as on a federation, without Flower's.

    `make_app`, a function of a module, makes the app of a node in its process.
    """

    def __init__(self, make_app: Callable[[], ClientApp], nodes: Sequence[NodeConfig]) -> None:
        super().__init__(self._forward, nodes, max_parallel=len(nodes))  # type: ignore[arg-type]
        spawn = multiprocessing.get_context("spawn")
        self._processes = {
            node_id: ProcessPoolExecutor(1, spawn, _begin, (make_app, context))
            for node_id, context in self.contexts.items()
        }
        self.used()  # all have started

    def _forward(self, message: Message, context: Context) -> Message:
        return self._processes[context.node_id].submit(_answer, message).result()

    def used(self) -> list[float]:
        """Return GiB of memory of each process, at most, once it has answered all messages."""
        return [process.submit(_used).result() for process in self._processes.values()]


_SERVED: dict[str, Any] = {}  # In a node's process: its app and context, and what tells its memory


def _begin(make_app: Callable[[], ClientApp], context: Context) -> None:
    _SERVED.update(app=make_app(), context=context, most=watch_memory())


def _answer(message: Message) -> Message:
    reply: Message = _SERVED["app"](message, _SERVED["context"])
    return reply


def _used() -> float:
    return float(_SERVED["most"]())


def watch_memory() -> Callable[[], float]:
    """Watch this process's anonymous memory; return what tells the most so far, in GiB."""
    most = memory_gib("RssAnon")

    def watch() -> None:
        nonlocal most
        while True:
            most = max(most, memory_gib("RssAnon"))
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()
    return lambda: most
