"""One replication: from settings to numbers."""

import time
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from flwr_vertical.arrays import Array
from simulations.fedpsg.data import Joint
from simulations.replications import Job, Metrics
from simulations.trees.data import draw
from simulations.trees.methods import METHODS, federated, pooled_predictions
from simulations.trees.own import predicted

OBJECTIVES = {
    "Bank": "binary", "Credit": "binary", "Letter": "multiclass", "motor": "regression"
}  # fmt: skip


def replicate(job: Job, data: dict[str, Joint]) -> Metrics:
    """Return the numbers of one replication."""
    settings = job.settings
    joint = data[settings["dataset"]]
    parts = {"pooled": _pooled, "blocks": _blocks, "defaults": _defaults}
    return parts[job.part](settings, joint)


def _defaults(settings: dict[str, Any], joint: Joint) -> Metrics:
    labels, n = joint.labels, len(joint.labels)
    test = np.random.default_rng(settings["seed"]).random(n) < settings["test"]
    started = time.process_time()
    p = predicted(settings["method"], {"a": joint.a, "b": joint.b}, labels, test)
    seconds = time.process_time() - started
    return {"AUC": float(roc_auc_score(labels[test], p)), "CPU seconds": seconds}


def _pooled(settings: dict[str, Any], joint: Joint) -> Metrics:
    task = draw(joint, settings, blocks=False)
    y = np.asarray(task.labels[task.test], dtype=float)
    objective, booster = OBJECTIVES[settings["dataset"]], settings["booster"]
    started = time.process_time()
    ours = federated(task, objective, booster, settings["method"])
    seconds = time.process_time() - started
    theirs = pooled_predictions(task, booster, objective != "regression")
    spread = float(np.std(task.labels[~task.test]))
    return {
        "CPU seconds": seconds,
        **{f"ours {name}": value for name, value in judged(y, ours, spread).items()},
        **{f"central {name}": value for name, value in judged(y, theirs, spread).items()},
    }


def judged(y: Array, found: Array, spread: float) -> Metrics:
    """Return figures of merit of predicted numbers, shape (n_test,), or probabilities."""
    if found.ndim == 1:
        return {"RMSE": float(np.sqrt(np.mean((found - y) ** 2)) / spread)}
    if found.shape[1] == 2:
        return {"AUC": float(roc_auc_score(y, found[:, 1]))}
    loss = float(log_loss(y, found, labels=np.arange(found.shape[1])))
    return {"accuracy": float(np.mean(found.argmax(axis=1) == y)), "log loss": loss}


def _blocks(settings: dict[str, Any], joint: Joint) -> Metrics:
    task = draw(joint, settings, blocks=True)
    started = time.process_time()
    scores = METHODS[settings["method"]](task, settings)
    seconds = time.process_time() - started
    y, lacks = np.asarray(task.labels[task.test], dtype=float), task.lacks[task.test]
    parts = {"": np.ones_like(lacks), ", both parties": ~lacks, ", party a only": lacks}
    found = {
        f"AUC{name}": float(roc_auc_score(y[rows], scores[rows])) for name, rows in parts.items()
    }
    return {**found, "CPU seconds": seconds}
