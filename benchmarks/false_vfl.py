"""What a pretraining step of FALSE-VFL costs, central and over parties.

    python benchmarks/false_vfl.py [--quick] [--steps 10] [--cores 2] [--precision mixed]

Steps: Isolet's size, on generated numbers: 8 parties of 77 columns, one block in five missing,
batches of 512, 10 draws, h of 128 and z of 64 dimensions. The central form trains on one autograd
graph in this process, with as many threads of PyTorch as there are cores; the parties share the
same cores. Forms take turns. Counted is the quickest step's wall, and the median step's CPU, which
other programs on the machine disturb least; alignment, second stage and predictions are no steps.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import command_line, machine_line

from flwr_vertical import Federation, Result, simulate
from flwr_vertical.alignment import Alignment
from flwr_vertical.incomplete import draw_blocks
from flwr_vertical.results import Progress
from simulations.false_vfl.data import to_blocks
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.strategy import FalseVFL

N_PARTIES, COLUMNS = 8, 77

Tables = dict[str, pd.DataFrame]


class Watch:
    """Wall and CPU seconds of steps, and the bytes that a step sends."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []
        self.up = self.down = 0.0

    def note(self) -> None:
        """Note that a step begins or ends now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._marks.append((time.perf_counter(), used.ru_utime + used.ru_stime))

    @property
    def steps(self) -> Any:
        """Wall and CPU seconds of each step, shape (n_steps, 2)."""
        return np.diff(np.array(self._marks), axis=0)

    @staticmethod
    def together(watches: list["Watch"]) -> tuple[float, float, float, float]:
        """Return the quickest step's wall, the median step's CPU, and bytes up and down."""
        steps = np.concatenate([watch.steps for watch in watches])
        cpu = float(np.median(steps[:, 1]))
        return float(steps[:, 0].min()), cpu, watches[0].up, watches[0].down


class _NotingProgress(Progress):
    """Notes the end of each step of the first stage."""

    def __init__(self, watch: Watch) -> None:
        super().__init__("false-vfl", enabled=False)
        self._watch, self._last = watch, 0

    def step(self, *args: Any, **values: Any) -> None:
        """Note the step; stages and blocks of predictions begin at 1 again."""
        if args[0] > self._last:
            self._watch.note()
            self._last = args[0]
        else:
            self._last = sys.maxsize


_WATCHES: list[Watch] = []


class TimedFalseVFL(FalseVFL):
    """Notes when each step of the first stage ends."""

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Run with a watch."""
        _WATCHES.append(Watch())
        super().run(federation, alignment, result, _NotingProgress(_WATCHES[-1]))

    def watch(self) -> Watch:
        """Return that of the last run."""
        return _WATCHES[-1]


def main() -> None:
    """Parse the command line and run."""
    parser = command_line(__doc__, "a few small steps")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cores", type=int, help="cores of this process (default: all)")
    parser.add_argument("--variant", choices=("I", "II"), default="I")
    parser.add_argument("--precision", choices=("float32", "mixed"), default="float32")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    print(machine_line(), flush=True)
    steps(options)


def steps(options: argparse.Namespace) -> None:
    """Measure steps of each form and print them, and what they are to each other."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    batch, n, runs = (64, 3, 1) if options.quick else (512, options.steps, options.runs)
    strategy = TimedFalseVFL(
        variant=options.variant,
        precision=options.precision,
        pretrain_epochs=1,
        epochs=1,
        pretrain_batch_size=batch,
        prediction_samples=1,
    )
    tables, mask, labels = generated(batch * n)
    held = {name: table[~mask[:, k]] for k, (name, table) in enumerate(tables.items())}
    forms: dict[str, Callable[[], Watch]] = {"central": partial(central, strategy, tables, mask)}
    for mode in ("plain", "masked"):
        forms[mode] = partial(split, strategy, held, labels, mode)
    watches: dict[str, list[Watch]] = {form: [] for form in forms}
    for _ in range(runs):
        for form, run in forms.items():
            watches[form].append(run())
    print(f"{runs} x {n} steps of {batch} samples, {options.precision}; a step:")
    found = {form: Watch.together(several) for form, several in watches.items()}
    for form, (wall, cpu, up, down) in found.items():
        print(
            f"  {form:<8} {1000 * wall:7.0f} ms wall (quickest) {1000 * cpu:7.0f} ms CPU (median) "
            f"{up / 1e6:7.2f} MB up {down / 1e6:7.2f} MB down"
        )
    for one, other, target in (("masked", "central", 1.5), ("masked", "plain", 1.2)):
        (wall, cpu), (of_wall, of_cpu) = found[one][:2], found[other][:2]
        print(
            f"  {one} / {other}: {wall / of_wall:.2f} in wall, {cpu / of_cpu:.2f} in CPU; "
            f"target {target}"
        )


def generated(n_rows: int) -> tuple[Tables, np.ndarray, "pd.Series[float]"]:
    """Return columns that follow from 20 numbers of each sample, missing blocks and few labels.

    Few to fit, and one draw to predict by: the first stage is what is measured.
    """
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n_rows, 20))
    ids = [f"s{i:05}" for i in range(n_rows)]
    tables = {
        f"party-{k}": pd.DataFrame(
            z @ rng.normal(size=(20, COLUMNS)) / 4 + rng.normal(size=(n_rows, COLUMNS)), index=ids
        ).add_prefix(f"c{k}-")
        for k in range(N_PARTIES)
    }
    mask = draw_blocks("MCAR 2", tables, seed=0)
    labels = pd.Series((z[:, 0] > 0).astype(float), index=ids)
    labels[50:] = np.nan
    return tables, mask, labels


def central(strategy: FalseVFL, tables: Tables, mask: np.ndarray) -> Watch:
    """Train on one graph."""
    scaled = {name: (table - table.mean()) / table.std() for name, table in tables.items()}
    blocks = to_blocks(scaled, mask)
    model = CentralModel(blocks, strategy.network_settings, strategy.variant, 2, 0)
    trained = [*model.parties.parameters(), *model.server.parameters()]
    optimiser = torch.optim.Adam(trained, lr=strategy.pretrain_learning_rate)
    watch = Watch()
    watch.note()
    for i, rows in enumerate(torch.split(torch.arange(len(mask)), strategy.pretrain_batch_size)):
        optimiser.zero_grad(set_to_none=True)
        loss = model.loss(blocks, rows, strategy.importance_samples, i)
        torch.autograd.backward([loss])
        optimiser.step()
        watch.note()
    return watch


def split(strategy: TimedFalseVFL, held: Tables, labels: "pd.Series[float]", mode: str) -> Watch:
    """Train over parties."""
    result = simulate(strategy, held, labels, aggregation=mode, progress=False)
    watch = strategy.watch()
    ledger = result.ledger.to_frame()
    rounds = ledger[ledger["step"].isin(["encode", "log_terms", "go_backward"])]
    # The second stage and predictions encode once each.
    first = rounds[rounds["round"] <= ledger[ledger["step"] == "go_backward"]["round"].max()]
    n = first[first["step"] == "go_backward"]["round"].nunique()
    watch.up, watch.down = first["bytes_up"].sum() / n, first["bytes_down"].sum() / n
    return watch


if __name__ == "__main__":
    main()
