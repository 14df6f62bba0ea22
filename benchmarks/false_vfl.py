"""What a pretraining step of FALSE-VFL costs, central and over parties.

    python benchmarks/false_vfl.py [--quick]

Steps: Isolet's size, on generated numbers: 8 parties of 77 columns, one block in five missing,
batches of 512, 10 draws, h of 128 and z of 64 dimensions. The central form trains on one autograd
graph in this process, with as many threads of PyTorch as there are cores; the parties share the
same cores. Forms take turns. Counted is the quickest step's wall, and the median step's CPU, which
other programs on the machine disturb least; alignment, second stage and predictions are no steps.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from common import begin, command_line

from flwr_vertical import Alignment, Federation, Progress, Result, simulate
from flwr_vertical.incomplete import draw_blocks
from simulations.false_vfl.data import to_blocks
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.strategy import FalseVFL

N_PARTIES, COLUMNS = 8, 77

Tables = dict[str, pd.DataFrame]


class Steps(NamedTuple):
    """What steps took."""

    seconds: np.ndarray  # (n_steps, 2): of wall and of CPU
    up: float = 0.0  # Bytes that a step sends
    down: float = 0.0


class Watch(Progress):
    """Notes when each step of the first stage ends."""

    def __init__(self) -> None:
        super().__init__("false-vfl", enabled=False)
        self._last = 0
        self._noted: list[tuple[float, float]] = []

    def note(self) -> None:
        """Note that a step begins or ends now."""
        self._noted.append((time.perf_counter(), time.process_time()))

    def step(self, *args: Any, **values: Any) -> None:
        """Note the step; stages and blocks of predictions begin at 1 again."""
        if args[0] > self._last:
            self.note()
            self._last = args[0]
        else:
            self._last = sys.maxsize

    @property
    def seconds(self) -> np.ndarray:
        """Wall and CPU seconds of each step, shape (n_steps, 2)."""
        return np.diff(np.array(self._noted), axis=0)


class TimedFalseVFL(FalseVFL):
    """Keeps in the result what each step of the first stage took."""

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Run with a watch."""
        watch = Watch()
        super().run(federation, alignment, result, watch)
        result.frames["steps"] = pd.DataFrame(watch.seconds)


def main() -> None:
    """Measure steps of each form and print them, and what they are to each other."""
    quick = begin(command_line(__doc__, "a few small steps")).quick
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    batch, n, runs = (64, 3, 1) if quick else (512, 10, 3)
    strategy = TimedFalseVFL(
        pretrain_epochs=1, epochs=1, pretrain_batch_size=batch, prediction_samples=1
    )
    tables, mask, labels = generated(batch * n)
    held = {name: table[~mask[:, k]] for k, (name, table) in enumerate(tables.items())}
    forms: dict[str, Callable[[], Steps]] = {"central": partial(central, strategy, tables, mask)}
    for mode in ("plain", "masked"):
        forms[mode] = partial(split, strategy, held, labels, mode)
    taken = [{form: run() for form, run in forms.items()} for _ in range(runs)]
    print(f"{runs} x {n} steps of {batch} samples; a step:")
    found = {}
    for form, (_, up, down) in taken[0].items():
        seconds = np.concatenate([one[form].seconds for one in taken])
        found[form] = wall, cpu = float(seconds[:, 0].min()), float(np.median(seconds[:, 1]))
        print(
            f"  {form:<8} {1000 * wall:7.0f} ms wall (quickest) {1000 * cpu:7.0f} ms CPU (median) "
            f"{up / 1e6:7.2f} MB up {down / 1e6:7.2f} MB down"
        )
    for other, target in (("central", 1.5), ("plain", 1.2)):
        wall, cpu = np.divide(found["masked"], found[other])
        print(f"  masked / {other}: {wall:.2f} in wall, {cpu:.2f} in CPU; target {target}")


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


def central(strategy: FalseVFL, tables: Tables, mask: np.ndarray) -> Steps:
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
    return Steps(watch.seconds)


def split(strategy: TimedFalseVFL, held: Tables, labels: "pd.Series[float]", mode: str) -> Steps:
    """Train over parties."""
    result = simulate(strategy, held, labels, aggregation=mode, progress=False)
    ledger = result.ledger.to_frame()
    rounds = ledger[ledger["step"].isin(["encode", "log_terms", "go_backward"])]
    # The second stage and predictions encode once each.
    first = rounds[rounds["round"] <= ledger[ledger["step"] == "go_backward"]["round"].max()]
    n = first[first["step"] == "go_backward"]["round"].nunique()
    up, down = first["bytes_up"].sum() / n, first["bytes_down"].sum() / n
    return Steps(result.frames["steps"].to_numpy(), up, down)


if __name__ == "__main__":
    main()
