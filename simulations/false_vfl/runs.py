"""One run: a data set, a method, a mechanism of training and a seed, tested under all mechanisms.

A run's numbers, in one record: ``accuracy <mechanism>`` in percent of the test samples;
``samples <mechanism> <k>`` and ``correct <mechanism> <k>``, how many test samples k parties hold
and how many of these are predicted correctly; ``loss`` of the last epoch of FALSE-VFL's first
stage; ``seconds <phase>``.
"""

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from simulations.data import Sources
from simulations.false_vfl.data import Split, draw_labelled, load_hapt, load_isolet, to_blocks
from simulations.false_vfl.images import load_fashion_mnist, load_modelnet10
from simulations.false_vfl.methods import METHODS
from simulations.false_vfl.training import Checkpoint, Task
from simulations.replications import Job, Metrics

LOADERS: dict[str, Callable[[Sources], Split]] = {
    "isolet": load_isolet, "fashion_mnist": load_fashion_mnist, "hapt": load_hapt,
    "modelnet10": load_modelnet10,
}  # fmt: skip
TEST_SEEDS = 1000  # added to a run's seed: blocks of test samples are missing by other draws


@dataclass(frozen=True)
class Shared:
    """What every run reads."""

    sources: Sources
    checkpoints: Path  # Folder for checkpoints
    every: int  # Epochs between two of them
    context: str  # Of the jobs' keys


@functools.lru_cache(maxsize=1)
def load(dataset: str, sources: Sources) -> Split:
    """Load a data set once a process."""
    return LOADERS[dataset](sources)


def replicate(job: Job, shared: Shared) -> Metrics:
    """Train and test once; see `simulations.replications.run_all`."""
    # Runs are spread over the cores; and more threads add in another order.
    torch.set_num_threads(1)
    own = job.settings
    data, seed = own["data"], own["seed"]
    split = load(own["dataset"], shared.sources).part(data["train_rows"], data["test_rows"])
    n = len(split.train_labels)
    labelled, aligned = draw_labelled(n, seed, data["labels"], data["aligned"])
    checkpoint = Checkpoint(shared.checkpoints / f"{job.key(shared.context)}.pt", shared.every)
    task = Task(
        blocks=to_blocks(split.train, split.draw_mask("train", own["train"], seed, aligned)),
        n_samples=n,
        labelled=torch.from_numpy(labelled),
        y=torch.from_numpy(split.train_labels[labelled]),
        n_classes=split.n_classes,
        seed=seed,
        checkpoint=checkpoint,
        name=json.dumps([own["dataset"], own["train"], seed, data], sort_keys=True),
        title=f"{own['dataset']}, {own['method']}, {own['train']}, seed {seed}",
    )
    predict, numbers = METHODS[own["method"]](task, own["fit"])
    started = time.perf_counter()
    for test in own["tests"]:
        mask = split.draw_mask("test", test, seed + TEST_SEEDS, aligned[:0])
        found = predict(to_blocks(split.test, mask), len(mask))
        right = found == split.test_labels
        numbers[f"accuracy {test}"] = 100.0 * float(right.mean())
        held = (~mask).sum(axis=1)
        for k in np.unique(held):
            numbers[f"samples {test} {k}"] = float((held == k).sum())
            numbers[f"correct {test} {k}"] = float(right[held == k].sum())
    numbers["seconds prediction"] = time.perf_counter() - started
    return numbers
