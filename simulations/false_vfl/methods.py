"""The methods of the study: each is fitted to blocks and labels, then predicts classes.

All run in one process, where all columns lie together (`strategies.false_vfl.central`); tests
of the strategies show that parties and server compute the same over the protocol, gradients to
1e-5. So the numbers are those of the protocol, and no message is sent.
"""

import functools
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flwr_vertical.arrays import Integers
from flwr_vertical.log import logger
from flwr_vertical.pages.page import human_seconds
from simulations.false_vfl.training import Blocks, Checkpoint, Pretraining, Task, fit_head
from strategies.false_vfl.central import CentralModel
from strategies.false_vfl.networks import NetworkSettings
from strategies.neural.hardware import device_of, to_numpy
from strategies.split.central import CentralSplit
from strategies.split.methods import METHODS as SPLIT
from strategies.split.methods import SplitNetworks, TrainingSettings

Predict = Callable[[Blocks, int], Integers]
Fitted = tuple[Predict, dict[str, float]]
"""What predicts the classes of samples; numbers of the training: ``seconds pretraining``, ..."""

Method = Callable[[Task, dict[str, Any]], Fitted]


def fit_false_vfl(variant: str, task: Task, fit: dict[str, Any]) -> Fitted:
    """Fit a variant of FALSE-VFL: both stages; the first one writes checkpoints."""
    networks = NetworkSettings.from_text(json.dumps(fit["networks"]))
    device = device_of("auto")
    task = replace(task, blocks=on(device, task.blocks), y=task.y.to(device))
    model = CentralModel(task.blocks, networks, variant, task.n_classes, task.seed).to(device)
    pretraining = Pretraining(model, task, fit)
    if (state := task.checkpoint.load()) is not None:
        pretraining.restore(state)
        logger.info("%s: goes on after epoch %d", task.title, pretraining.epochs_done)
    epochs = fit["pretrain_epochs"]
    while pretraining.epochs_done < epochs:
        loss = pretraining.epoch()
        done = pretraining.epochs_done
        if task.checkpoint.due(done):
            task.checkpoint.save(pretraining.state())
            left = pretraining.seconds / done * (epochs - done)
            logger.info(
                "%s: epoch %d of %d, loss %.2f, %s left",
                task.title, done, epochs, loss, human_seconds(left),
            )  # fmt: skip
    started = time.perf_counter()
    fitted = fit_head(model, task, fit)
    numbers = {
        "loss": pretraining.loss,
        "seconds pretraining": pretraining.seconds,
        "seconds training": time.perf_counter() - started,
    }

    def predict(blocks: Blocks, n_samples: int) -> Integers:
        rows = torch.arange(n_samples)
        found = fitted.predict(on(device, blocks), rows, fit["prediction_draws"], task.seed)
        return np.asarray(to_numpy(found.value), dtype=np.int64)

    return predict, numbers


def on(device: torch.device, blocks: Blocks) -> Blocks:
    """Return blocks on a device."""
    return {name: block.to(device) for name, block in blocks.items()}


def fit_baseline(kind: str, task: Task, fit: dict[str, Any]) -> Fitted:
    """Fit a baseline."""
    own = {name: fit[name] for name in ("epochs", "batch_size", "learning_rate", "weight_decay")}
    before = {f"pretrain_{name}": value for name, value in fit.get("simsiam", {}).items()}
    training = TrainingSettings(**own, **before, pretrain="simsiam" if before else "none")
    networks = SplitNetworks(**fit["networks"])
    model = CentralSplit(task.blocks, kind, task.n_classes, task.seed, training, networks)
    spent = _pretrain(model, kind, task, fit) if before else 0.0
    started = time.perf_counter()
    model.fit(task.labelled, task.y)
    numbers = {
        "loss": model.losses[-1],
        "seconds pretraining": spent,
        "seconds training": time.perf_counter() - started,
    }

    def predict(blocks: Blocks, n_samples: int) -> Integers:
        found = model.predict(blocks, torch.arange(n_samples))
        return np.asarray(found.value.numpy(), dtype=np.int64)

    return predict, numbers


def _pretrain(model: CentralSplit, kind: str, task: Task, fit: dict[str, Any]) -> float:
    """Pretrain, or take up what another did that pretrains alike; return the seconds it took."""
    encoders = {**fit["simsiam"], **fit["networks"], "task": task.name}
    name = hashlib.sha256(json.dumps(encoders, sort_keys=True).encode()).hexdigest()[:20]
    kept = Checkpoint(task.checkpoint.path.with_name(f"simsiam-{name}.pt"), 1)
    shared = not SPLIT[kind].hybrid
    if shared and (state := kept.load()) is not None:
        model.take_up(state["weights"])
        return float(state["seconds"])
    started = time.perf_counter()
    weights = model.pretrain()
    spent = time.perf_counter() - started
    if shared and task.checkpoint.every:
        kept.save({"weights": weights, "seconds": spent})
    return spent


PROPOSED: dict[str, Method] = {
    "FALSE-VFL-I": functools.partial(fit_false_vfl, "I"),
    "FALSE-VFL-II": functools.partial(fit_false_vfl, "II"),
}
BASELINES: dict[str, Method] = {
    "Vanilla VFL": functools.partial(fit_baseline, "vanilla"),
    "LASER-VFL": functools.partial(fit_baseline, "laser"),
    "PlugVFL": functools.partial(fit_baseline, "plug"),
    "FedHSSL": functools.partial(fit_baseline, "fedhssl"),
}
METHODS: dict[str, Method] = {**BASELINES, **PROPOSED}


def section(method: str) -> str:
    """Return the section of the preset that has a method's settings: both variants share one."""
    return "FALSE-VFL" if method in PROPOSED else method
