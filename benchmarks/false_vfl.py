"""What a pretraining step of FALSE-VFL costs, central and over parties.

    python benchmarks/false_vfl.py [--quick]

Steps: Isolet's size, on generated numbers: 8 parties of 77 columns, one block in five missing,
batches of 512, 10 draws, h of 128 and z of 64 dimensions. The central form trains on one autograd
graph in this process, with as many threads of PyTorch as there are cores; the parties share the
same cores. Forms take turns. A step is what three more epochs take beside the first, by the number
of their steps: seconds (the quickest of the runs), of processors (their median), and bytes.
"""

import os
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import torch
from common import begin, command_line, timed

from flwr_vertical import simulate
from flwr_vertical.incomplete import draw_blocks
from simulations.false_vfl.data import to_blocks
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.strategy import FalseVFL

N_PARTIES, COLUMNS = 8, 77

Tables = dict[str, pd.DataFrame]
Run = Callable[[FalseVFL], tuple[float, float]]
"""From settings to the bytes that a whole run sends up and down."""


def main() -> None:
    """Measure steps of each form and print them, and what they are to each other."""
    quick = begin(command_line(__doc__, "a few small steps")).quick
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    batch, n, runs = (64, 3, 1) if quick else (512, 10, 3)
    tables, mask, labels = generated(batch * n)
    held = {name: table[~mask[:, k]] for k, (name, table) in enumerate(tables.items())}
    forms: dict[str, Run] = {"central": partial(central, tables, mask)}
    for mode in ("plain", "masked"):
        forms[mode] = partial(split, held, labels, mode)
    taken = [{form: step(run, batch, n) for form, run in forms.items()} for _ in range(runs)]
    print(f"{runs} x {n} steps of {batch} samples; a step:")
    found = {}
    for form in forms:
        wall, cpu, up, down = np.array([one[form] for one in taken]).T
        found[form] = np.array([wall.min(), np.median(cpu)])
        print(
            f"  {form:<8} {1000 * wall.min():7.0f} ms {1000 * np.median(cpu):7.0f} ms of processors"
            f" {up.max() / 1e6:7.2f} MB up {down.max() / 1e6:7.2f} MB down"
        )
    for other, target in (("central", 1.5), ("plain", 1.2)):
        wall, cpu = found["masked"] / found[other]
        print(f"  masked / {other}: {wall:.2f} in wall, {cpu:.2f} in CPU; target {target}")


def step(run: Run, batch: int, n: int) -> list[float]:
    """Return seconds, seconds of processors, and bytes up and down of a step."""
    settings = {"epochs": 1, "pretrain_batch_size": batch, "prediction_samples": 1}
    first, more = (FalseVFL(pretrain_epochs=1, **settings), FalseVFL(pretrain_epochs=4, **settings))
    run(first)  # what is made once is made then
    (sent, *spent), (all_sent, *all_spent) = (timed(partial(run, of)) for of in (first, more))
    return [
        (whole - part) / (3 * n)
        for whole, part in zip([*all_spent, *all_sent], [*spent, *sent], strict=True)
    ]


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


def central(tables: Tables, mask: np.ndarray, strategy: FalseVFL) -> tuple[float, float]:
    """Train on one graph."""
    scaled = {name: (table - table.mean()) / table.std() for name, table in tables.items()}
    blocks = to_blocks(scaled, mask)
    model = CentralModel(blocks, strategy.network_settings, strategy.variant, 2, 0)
    trained = [*model.parties.parameters(), *model.server.parameters()]
    optimiser = torch.optim.Adam(trained, lr=strategy.pretrain_learning_rate)
    batches = torch.split(torch.arange(len(mask)), strategy.pretrain_batch_size)
    for i, rows in enumerate(batches * strategy.pretrain_epochs):
        optimiser.zero_grad(set_to_none=True)
        loss = model.loss(blocks, rows, strategy.importance_samples, i)
        torch.autograd.backward([loss])
        optimiser.step()
    return 0.0, 0.0


def split(
    held: Tables, labels: "pd.Series[float]", mode: str, strategy: FalseVFL
) -> tuple[float, float]:
    """Train over parties."""
    ledger = simulate(strategy, held, labels, aggregation=mode, progress=False).ledger
    return float(ledger.bytes_up), float(ledger.bytes_down)


if __name__ == "__main__":
    main()
