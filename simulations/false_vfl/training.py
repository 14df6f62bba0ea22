"""Both stages of FALSE-VFL in the central form, as Table 10 of the paper has them for tables.

A training takes tens of minutes and may be stopped at any moment, so it writes checkpoints.
"""

import copy
import json
import math
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical.log import logger
from flwr_vertical.whole_files import atomic_path
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.posterior import log_bound
from strategies.neural.networks import descend
from strategies.neural.party import PartyBlock

Blocks = Mapping[str, PartyBlock]


@dataclass(frozen=True)
class Checkpoint:
    """One file, written every few epochs."""

    path: Path
    every: int  # Epochs between two checkpoints; 0 writes none

    def due(self, epoch: int) -> bool:
        """Whether to write one after so many epochs."""
        return self.every > 0 and epoch % self.every == 0

    def save(self, state: dict[str, Any]) -> None:
        """Write the state in place of the last one."""
        with atomic_path(self.path) as temporary:
            torch.save(state, temporary)

    def load(self) -> dict[str, Any] | None:
        """Return the last state; None, and a line in the log, where none can be read."""
        if not self.path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            logger.warning("the checkpoint %s cannot be read, from the start: %s", self.path, error)
            return None
        return state


@dataclass(frozen=True)
class Task:
    """What a method is fitted to."""

    blocks: Blocks  # By party, training samples
    n_samples: int
    labelled: Tensor  # (n_labelled,): samples that have a label
    y: Tensor  # (n_labelled,)
    n_classes: int
    seed: int
    checkpoint: Checkpoint
    name: str  # Tells tasks apart: what blocks, labels and weights follow from
    title: str  # What the log calls it


class Pretraining:
    """The first stage, epoch by epoch; `fit` has the preset's settings of the method."""

    def __init__(self, model: CentralModel, task: Task, fit: Mapping[str, Any]) -> None:
        self.epochs_done, self.seconds, self.loss = 0, 0.0, math.nan
        self._model, self._blocks, self._n = model, task.blocks, task.n_samples
        self._batch, self._n_draws = fit["pretrain_batch_size"], fit["draws"]
        self._rng = np.random.default_rng([task.seed, 1])
        trained = [*model.parties.parameters(), *model.server.parameters()]
        rate, decay = fit["pretrain_learning_rate"], fit["weight_decay"]
        self._optimiser = torch.optim.Adam(trained, lr=rate, weight_decay=decay)

    def epoch(self) -> float:
        """Go through all samples once; return the mean loss."""
        started = time.perf_counter()
        losses = []
        order = torch.from_numpy(self._rng.permutation(self._n))
        for batch in torch.split(order, self._batch):
            seed = int(self._rng.integers(2**62))
            loss = self._model.loss(self._blocks, batch, self._n_draws, seed)
            descend(self._optimiser, [loss])
            losses.append(float(loss.detach()) * len(batch))
        mean = math.fsum(losses) / self._n
        if not math.isfinite(mean):
            raise FloatingPointError(f"the loss of the first stage became {mean}")
        self.epochs_done += 1
        self.seconds += time.perf_counter() - started
        self.loss = mean
        return mean

    def state(self) -> dict[str, Any]:
        """Return all that the next epoch depends on."""
        return {
            "model": self._model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "rng": json.dumps(self._rng.bit_generator.state),
            "epochs": self.epochs_done,
            "seconds": self.seconds,
            "loss": self.loss,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._rng.bit_generator.state = json.loads(state["rng"])
        self.epochs_done, self.seconds = state["epochs"], state["seconds"]
        self.loss = state["loss"]


def fit_head(model: CentralModel, task: Task, fit: Mapping[str, Any]) -> CentralModel:
    """Train the discriminator of a copy of the model, on labels: the second stage."""
    model, rows, y = copy.deepcopy(model), task.labelled, task.y
    rng = np.random.default_rng([task.seed, 2])
    rate, decay = fit["learning_rate"], fit["weight_decay"]
    optimiser = torch.optim.Adam(model.head.parameters(), lr=rate, weight_decay=decay)
    for _ in range(fit["epochs"]):
        with torch.no_grad():  # everything but the discriminator is fixed
            seed = int(rng.integers(2**62))
            h, logs = model.log_weights(task.blocks, rows, fit["draws"], seed)
        for batch in torch.split(torch.from_numpy(rng.permutation(len(rows))), fit["batch_size"]):
            given = logs[batch] + model.head.log_density(h[batch], y[batch])
            descend(optimiser, [-log_bound(given).mean()])
    return model
