"""One replication of each part of the study: from settings to numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from flwr_vertical.errors import DataError
from simulations.fedpsg.classifiers import CLASSIFIERS, evaluate
from simulations.fedpsg.criteria import as_valid, distances, judge, standard_error
from simulations.fedpsg.data import Joint, Task, coded, draw_task, lacking, task_of
from simulations.fedpsg.generation import copula_tables, generate, joint_tables
from simulations.replications import Job, Metrics

Data = Mapping[str, Joint]

ALIGNED_ONLY = "nothing"


def replicate(job: Job, data: Data) -> Metrics:
    """Run one replication; see `simulations.replications.run_all`."""
    torch.set_num_threads(1)  # one job for each core
    return PARTS[job.part](job.settings, data)


def _rows(settings: dict[str, Any], data: Data) -> Metrics:
    """Generate the rows that B lacks, and judge them."""
    joint, seed = data[settings["dataset"]], settings["seed"]
    task = draw_task(joint, settings["ratio"], seed, settings["rows"])
    method = settings["how"]
    if method["kind"] in ("truth", "copula", "joint"):
        real = {"a": task.a.loc[task.missing], "b": task.truth}
        if method["kind"] == "truth":
            made = other_true_rows(task, seed)
        elif method["kind"] == "copula":
            made = copula_tables(task, method["name"], method["epsilon"], seed)
        else:
            made = joint_tables(task, len(task.truth), settings["networks"]["iterations"], seed)
            del made["a"]["label"]
        return distances(real, made)
    return judge(generate(task, joint, settings), task, seed)


def other_true_rows(task: Task, seed: int) -> dict[str, pd.DataFrame]:
    """Return aligned rows of both parties, at most as many as B lacks: what few rows alone make."""
    rows = task.seen.sample(min(len(task.seen), len(task.truth)), random_state=seed)
    return {"a": task.a.loc[rows.index], "b": rows}


def _downstream(settings: dict[str, Any], data: Data) -> Metrics:
    """Experiment 3: a share of the aligned samples is the test, and nothing is learnt from it."""
    joint, seed = data[settings["dataset"]], settings["seed"]
    whole = draw_task(joint, settings["ratio"], seed, settings["rows"])
    aligned = whole.seen.index
    order = np.random.default_rng([seed, 3]).permutation(len(aligned))
    test = aligned[np.sort(order[: round(settings["test"] * len(aligned))])]
    every = whole.a.index[~whole.a.index.isin(test)]
    task = task_of(joint, every, aligned[~aligned.isin(test)])
    return _trained(task, joint, test, settings)


def _aligned(settings: dict[str, Any], data: Data) -> Metrics:
    """So many aligned samples, all others at A alone; the test rows are of neither."""
    joint, seed = data[settings["dataset"]], settings["seed"]
    order = np.random.default_rng([seed, 5]).permutation(len(joint.a))
    test = joint.a.index[np.sort(order[: settings["test_rows"]])]
    rest = order[settings["test_rows"] :]
    every = joint.a.index[np.sort(rest)]
    # Nested: more aligned samples are the fewer ones and others.
    task = task_of(joint, every, joint.a.index[np.sort(rest[: settings["aligned"]])])
    return _trained(task, joint, test, settings)


def _default(settings: dict[str, Any], data: Data) -> Metrics:
    """Test samples of all; of the others B lacks a share by a mechanism: errors and classifiers."""
    joint, seed, how = data[settings["dataset"]], settings["seed"], settings["how"]
    order = np.random.default_rng([seed, 7]).permutation(len(joint.a))
    order = order[: settings["rows"] or len(order)]
    n_test = round(settings["test"] * len(order))
    test, every = (joint.a.index[np.sort(part)] for part in (order[:n_test], order[n_test:]))
    gone = lacking(joint.a.loc[every], settings["ratio"], settings["mechanism"], seed)
    task = task_of(joint, every, every[~gone])
    # Letters: the second half of the alphabet; 0 and 1 stay what they are.
    joint = replace(joint, labels=(joint.labels > joint.labels.mean()).astype(float))
    names = ("LR", "GBDT")
    if how["kind"] == ALIGNED_ONLY:
        return _trained(task, joint, test, settings, names)
    try:
        made = generate(task, joint, settings)
    except DataError:  # too few shared samples for the method, which says so
        return {}
    real = {"a": task.a.loc[task.missing], "b": task.truth}
    found = distances(real, {"a": real["a"], "b": as_valid(made, task)})
    error = standard_error(made, task)
    return {"error": error, **found, **_trained(task, joint, test, settings, names, made)}


def _trained(
    task: Task,
    joint: Joint,
    test: pd.Index,
    settings: dict[str, Any],
    names: Sequence[str] = CLASSIFIERS,
    made: pd.DataFrame | None = None,
) -> Metrics:
    """Train classifiers on the aligned rows and on what a method adds, and judge on real rows."""
    seed, how = settings["seed"], settings["how"]
    b = coded(task.seen, joint.b)
    if how["kind"] not in (ALIGNED_ONLY, "joint"):
        if made is None:
            made = generate(task, joint, settings)
        b = pd.concat([b, coded(made, joint.b)])
    a = coded(joint.a, joint.a)
    truth = coded(joint.b.loc[test], joint.b)
    x, y = np.hstack([a.loc[b.index], b]), np.asarray(joint.labels.loc[b.index], dtype=np.float64)
    if how["kind"] == "joint":
        new = joint_tables(task, len(task.truth), settings["networks"]["iterations"], seed)
        columns = [coded(new["a"], joint.a), coded(new["b"], joint.b)]
        x = np.vstack([x, np.hstack(columns)])
        y = np.concatenate([y, new["a"]["label"]])
    right = np.asarray(joint.labels.loc[test], dtype=np.float64)
    return evaluate(x, y, np.hstack([a.loc[test], truth]), right, seed, names)


PARTS: dict[str, Callable[[dict[str, Any], Data], Metrics]] = {
    "rows": _rows, "downstream": _downstream, "aligned": _aligned, "default": _default,
}  # fmt: skip
