"""What a pretraining step of FALSE-VFL costs, central and over parties.

    python benchmarks/false_vfl.py [--quick]

Isolet's size, on generated numbers: 8 parties of 77 columns, one block in five missing, batches of
512, 10 draws, h of 128 and z of 64 dimensions. The central form trains on one autograd graph in the
same process, with one thread of PyTorch. Forms take turns. Of each the quickest run of two epochs
less the quickest of one counts: greeting, alignment, second stage and predictions are no steps.
"""

import argparse
import dataclasses
import resource
import time

import numpy as np
import pandas as pd
import torch
from machine import machine_line

from flwr_vertical import simulate
from flwr_vertical.tables import draw_blocks
from strategies.deep.false_vfl.central import Block, CentralModel
from strategies.deep.false_vfl.strategy import FalseVFL

N_PARTIES, COLUMNS = 8, 77


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small steps")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    batch, steps, runs = (64, 2, 1) if options.quick else (512, 6, options.runs)
    torch.set_num_threads(1)
    print(machine_line())
    rng = np.random.default_rng(0)
    z = rng.normal(size=(batch * steps, 20))
    ids = [f"s{i:05}" for i in range(len(z))]
    tables = {
        f"party-{k}": pd.DataFrame(
            z @ rng.normal(size=(20, COLUMNS)) / 4 + rng.normal(size=(len(z), COLUMNS)), index=ids
        ).add_prefix(f"c{k}-")
        for k in range(N_PARTIES)
    }
    mask = draw_blocks("MCAR 2", tables, seed=0)
    held = {name: table[~mask[:, k]] for k, (name, table) in enumerate(tables.items())}
    labels = pd.Series((z[:, 0] > 0).astype(float), index=ids)
    labels[50:] = np.nan
    # Few to fit, and one draw to predict by: the first stage is what is measured.
    strategy = FalseVFL(
        pretrain_epochs=1, epochs=1, pretrain_batch_size=batch, prediction_samples=1
    )

    def run(form: str, epochs: int) -> tuple[float, ...]:
        longer = dataclasses.replace(strategy, pretrain_epochs=epochs)
        if form == "central":
            return central(longer, tables, mask, batch)
        return split(longer, held, labels, form)

    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for _ in range(runs):
        for form in ("central", "plain", "masked"):
            for epochs in (1, 2):
                found.setdefault((form, epochs), []).append(run(form, epochs))
    print(f"{steps} steps of {batch} samples, {runs} run(s); a step:")
    for form in ("central", "plain", "masked"):
        one, two = (np.min(found[form, epochs], axis=0) for epochs in (1, 2))
        wall, cpu, up, down = (two - one) / steps
        print(
            f"{form:<8} {1000 * wall:7.0f} ms wall {1000 * cpu:7.0f} ms CPU "
            f"{up / 1e6:7.2f} MB up {down / 1e6:7.2f} MB down"
        )


def central(
    strategy: FalseVFL, tables: dict[str, pd.DataFrame], mask: np.ndarray, batch: int
) -> tuple[float, float, float, float]:
    """Train on one graph; seconds of wall and CPU."""
    blocks = {}
    for k, (name, table) in enumerate(tables.items()):
        rows = np.flatnonzero(~mask[:, k])
        row = np.full(len(mask), -1)
        row[rows] = np.arange(len(rows))
        x = torch.tensor(table.to_numpy()[rows], dtype=torch.float32)
        x = (x - x.mean(0)) / x.std(0)
        blocks[name] = Block(x, torch.ones_like(x), torch.from_numpy(row))
    model = CentralModel(blocks, strategy.network_settings, strategy.variant, 2, 0)
    trained = [*model.parties.parameters(), *model.server.parameters()]
    optimiser = torch.optim.Adam(trained, lr=strategy.pretrain_learning_rate)
    watch = Watch()
    rows_in_turn = [*torch.split(torch.arange(len(mask)), batch)] * strategy.pretrain_epochs
    for i, rows_of_batch in enumerate(rows_in_turn):
        optimiser.zero_grad(set_to_none=True)
        loss = model.loss(blocks, rows_of_batch, strategy.importance_samples, i)
        torch.autograd.backward([loss])
        optimiser.step()
    return (*watch.seconds(), 0.0, 0.0)


def split(
    strategy: FalseVFL, held: dict[str, pd.DataFrame], labels: "pd.Series[float]", mode: str
) -> tuple[float, float, float, float]:
    """Train over parties; seconds of wall and CPU, bytes up and down."""
    watch = Watch()
    result = simulate(strategy, held, labels, aggregation=mode, progress=False)
    ledger = result.ledger.to_frame()
    return (*watch.seconds(), ledger["bytes_up"].sum(), ledger["bytes_down"].sum())


class Watch:
    """Measures wall and CPU seconds from when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._used()

    def seconds(self) -> tuple[float, float]:
        """Return both."""
        return time.perf_counter() - self._wall, self._used() - self._cpu

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
