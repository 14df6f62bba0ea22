"""Both stages of FALSE-VFL in the central form, as Table 10 of the paper has them for tables."""

import copy
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.posterior import log_bound
from strategies.neural.party import PartyBlock


@dataclass(frozen=True)
class Stages:
    """Settings of both stages; the defaults are those of Table 10 for Isolet."""

    n_draws: int = 10  # kappa
    pretrain_rate: float = 5e-4  # Adam's, of the first and of the second stage
    rate: float = 2e-4  # Adam's, of the first and of the second stage
    pretrain_batch: int = 512
    batch: int = 128
    weight_decay: float = 1e-4


class Pretraining:
    """The first stage, epoch by epoch."""

    def __init__(
        self,
        model: CentralModel,
        blocks: Mapping[str, PartyBlock],
        n_samples: int,
        stages: Stages,
        seed: int,
    ) -> None:
        self.epochs_done, self.seconds, self.loss = 0, 0.0, math.nan
        self._model, self._blocks, self._n = model, blocks, n_samples
        self._stages = stages
        self._rng = np.random.default_rng([seed, 1])
        trained = [*model.parties.parameters(), *model.server.parameters()]
        self._optimiser = torch.optim.Adam(
            trained, lr=stages.pretrain_rate, weight_decay=stages.weight_decay
        )

    def epoch(self) -> float:
        """Go through all samples once; return the mean loss."""
        started = time.perf_counter()
        losses = []
        order = torch.from_numpy(self._rng.permutation(self._n))
        for batch in torch.split(order, self._stages.pretrain_batch):
            self._optimiser.zero_grad(set_to_none=True)
            seed = int(self._rng.integers(2**62))
            loss = self._model.loss(self._blocks, batch, self._stages.n_draws, seed)
            torch.autograd.backward([loss])
            self._optimiser.step()
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


def fit_head(
    model: CentralModel,
    blocks: Mapping[str, PartyBlock],
    rows: Tensor,
    y: Tensor,
    epochs: int,
    stages: Stages,
    seed: int,
) -> CentralModel:
    """Train the discriminator of a copy of the model: the second stage.

    Shapes: rows (n_labelled,); y (n_labelled,).
    """
    model = copy.deepcopy(model)
    rng = np.random.default_rng([seed, 2])
    optimiser = torch.optim.Adam(
        model.head.parameters(), lr=stages.rate, weight_decay=stages.weight_decay
    )
    for _ in range(epochs):
        with torch.no_grad():  # everything but the discriminator is fixed
            seed = int(rng.integers(2**62))
            h, logs = model.log_weights(blocks, rows, stages.n_draws, seed)
        for batch in torch.split(torch.from_numpy(rng.permutation(len(rows))), stages.batch):
            optimiser.zero_grad(set_to_none=True)
            given = logs[batch] + model.head.log_density(h[batch], y[batch])
            loss = -log_bound(given).mean()
            torch.autograd.backward([loss])
            optimiser.step()
    return model
