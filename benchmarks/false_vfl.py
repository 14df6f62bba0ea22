"""What a pretraining step of FALSE-VFL costs, central and over parties.

    python benchmarks/false_vfl.py [--quick]

Steps: Isolet's size, on generated numbers: 8 parties of 77 columns, one block in five missing,
batches of 512, 10 draws, h of 128 and z of 64 dimensions. The central form trains on one autograd
graph in this process, with as many threads of PyTorch as there are cores; the parties share the
same cores. Forms take turns. Counted is the quickest step's wall, and the median step's CPU, which
other programs on the machine disturb least; alignment, second stage and predictions are no steps.
"""

import os
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from common import make_parties, run, show

from flwr_vertical import Progress, simulate
from flwr_vertical.incomplete import draw_blocks
from simulations.false_vfl.data import to_blocks
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.strategy import FalseVFL

N_PARTIES, COLUMNS = 8, 77

Tables = dict[str, pd.DataFrame]


def main(options: Namespace) -> None:
    """Measure steps of each form and print them, and what they are to each other."""
    batch, n, runs = (64, 3, 1) if options.quick else (512, 10, 3)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    strategy = FalseVFL(
        pretrain_epochs=1, epochs=1, pretrain_batch_size=batch, prediction_samples=1
    )
    tables, common = make_parties(batch * n, (COLUMNS,) * N_PARTIES)
    mask = draw_blocks("MCAR 2", tables, seed=0)
    # Few to fit, and one draw to predict by: the first stage is what is measured.
    labels = pd.Series((common > 0).astype(float)).where(np.arange(batch * n) < 50)
    held = {name: table[~mask[:, k]] for k, (name, table) in enumerate(tables.items())}
    forms: dict[str, Callable[[], pd.DataFrame]] = {
        "central": partial(central, strategy, tables, mask)
    }
    for mode in ("plain", "masked"):
        forms[mode] = partial(split, strategy, held, labels, mode)
    taken = [{form: run() for form, run in forms.items()} for _ in range(runs)]
    print(f"{runs} x {n} steps of {batch} samples; a step:")
    found = {}
    for form in forms:
        steps = pd.concat([one[form] for one in taken])
        costs = {"ms of wall (quickest)": 1e3 * steps["wall"].min()}
        costs |= {"ms of CPU (median)": 1e3 * steps["cpu"].median()}
        found[form] = np.array(list(costs.values()))
        show(form, costs | {"MB up": steps["up"].mean(), "MB down": steps["down"].mean()})
    for other, target in (("central", "1.5"), ("plain", "1.2")):
        wall, cpu = found["masked"] / found[other]
        show(f"masked / {other}", {"in wall": wall, "in CPU": cpu}, target)


def between(ends: list[tuple[float, float]]) -> pd.DataFrame:
    """Return seconds of wall and of CPU from each step's end to the next, of which none is sent."""
    return pd.DataFrame(np.diff(ends, axis=0), columns=["wall", "cpu"]).assign(up=0.0, down=0.0)


def now() -> tuple[float, float]:
    """Return the time, and this process's."""
    return time.perf_counter(), time.process_time()


def central(strategy: FalseVFL, tables: Tables, mask: np.ndarray) -> pd.DataFrame:
    """Train on one graph."""
    scaled = {name: (table - table.mean()) / table.std() for name, table in tables.items()}
    blocks = to_blocks(scaled, mask)
    model = CentralModel(blocks, strategy.network_settings, strategy.variant, 2, 0)
    trained = [*model.parties.parameters(), *model.server.parameters()]
    optimiser = torch.optim.Adam(trained, lr=strategy.pretrain_learning_rate)
    ends = [now()]
    for i, rows in enumerate(torch.split(torch.arange(len(mask)), strategy.pretrain_batch_size)):
        optimiser.zero_grad(set_to_none=True)
        loss = model.loss(blocks, rows, strategy.importance_samples, i)
        torch.autograd.backward([loss])
        optimiser.step()
        ends.append(now())
    return between(ends)


def split(strategy: FalseVFL, held: Tables, labels: "pd.Series[float]", mode: str) -> pd.DataFrame:
    """Train over parties."""
    ends: list[tuple[float, float]] = []

    def note(*args: Any, **values: Any) -> None:
        ends.append(now())

    with mock.patch.object(Progress, "step", note):
        result = simulate(strategy, held, labels, aggregation=mode, progress=False)
    ledger = result.ledger.to_frame()
    rounds = ledger[ledger["step"].isin(["encode", "log_terms", "go_backward"])]
    # The second stage and predictions, which follow, encode once each.
    backward = rounds[rounds["step"] == "go_backward"]["round"]
    first, n = rounds[rounds["round"] <= backward.max()], backward.nunique()
    sent = first[["bytes_up", "bytes_down"]].sum() / 1e6 / n
    return between(ends[:n]).assign(up=sent["bytes_up"], down=sent["bytes_down"])


if __name__ == "__main__":
    run(__doc__, main, "a few small steps")
