"""The methods that are compared: from a task to predictions of its samples without a label."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neighbors import NearestNeighbors

from flwr_vertical import simulate
from flwr_vertical.arrays import Array, Flags
from simulations.trees.data import Task, binned
from strategies.trees import VerticalGBDT

_DONORS = 5

Completed = Callable[[Task], tuple[pd.DataFrame, Flags | bool]]
"""A table of all samples, and which of them may be fitted."""


def federated(task: Task, objective: str, booster: dict[str, Any], histograms: str) -> Array:
    """Predict by `VerticalGBDT`: probabilities, shape (n_test, n_classes), or numbers."""
    strategy = VerticalGBDT(
        objective=objective, histograms=histograms, validation_share=0.0, **booster
    )
    result = simulate(strategy, task.tables, task.hidden_labels, progress=False)
    assert result.predictions is not None
    found = result.predictions.loc[task.labels.index[task.test]]
    classes = [name for name in found if str(name).startswith("probability_")]
    return found[classes].to_numpy() if classes else found["prediction"].to_numpy()


def central(
    x: pd.DataFrame,
    y: "pd.Series[float]",
    fit: Flags,
    booster: dict[str, Any],
    classes: bool = True,
) -> Any:
    """Fit scikit-learn's booster with the settings of the federated one to some rows of codes."""
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    model = kind(
        max_iter=booster["n_trees"],
        max_depth=booster["max_depth"],
        max_leaf_nodes=None,
        max_bins=booster["n_bins"],
        min_samples_leaf=booster["min_child"],
        learning_rate=booster["learning_rate"],
        early_stopping=False,
    )
    return model.fit(x[fit], y[fit])


def pooled_predictions(task: Task, booster: dict[str, Any], classes: bool) -> Array:
    """Return predictions of the central booster on both parties' columns, in the same bins."""
    codes = binned(task.pooled, booster["n_bins"])
    model = central(codes, task.labels, ~task.test, booster, classes)
    rows = codes[task.test]
    return np.asarray(model.predict_proba(rows) if classes else model.predict(rows))


def _patterns(task: Task, settings: dict[str, Any]) -> Array:
    return federated(task, "binary", {**settings["booster"], "patterns": 3}, "open")[:, 1]


def _booster(made_of: Completed, task: Task, settings: dict[str, Any]) -> Array:
    """Predict by the central booster on a table, fitted to some of its samples."""
    booster, (x, fit) = settings["booster"], made_of(task)
    codes = binned(x, booster["n_bins"])
    model = central(codes, task.labels, fit & ~task.test, booster)
    return np.asarray(model.predict_proba(codes[task.test])[:, 1])


def _two_models(task: Task, settings: dict[str, Any]) -> Array:
    both = METHODS["intersection only"](task, settings)
    return np.where(task.lacks[task.test], METHODS["party a alone"](task, settings), both)


def from_donors(task: Task) -> pd.DataFrame:
    """Return party b's table, what it lacks filled with the mean of the nearest donors.

    That is what FKNN imputes where a's columns are complete and all of b's missing (a test compares
    the two), and the whole table would take it 500 million pairs.
    """
    a = (task.a / task.a.std(ddof=0)).to_numpy()
    search = NearestNeighbors(n_neighbors=_DONORS).fit(a[~task.lacks])
    donors = search.kneighbors(a[task.lacks], return_distance=False)
    values = task.b.to_numpy().copy()
    values[task.lacks] = values[~task.lacks][donors].mean(axis=1)
    return pd.DataFrame(values, task.b.index, task.b.columns)


def _laser(task: Task, settings: dict[str, Any]) -> Array:
    from strategies.split import LaserVFL

    strategy = LaserVFL(pretrain="none", **settings["laser"])
    scaled = {
        name: (table - table.mean()) / table.std().replace(0.0, 1.0)
        for name, table in task.tables.items()
    }
    result = simulate(strategy, scaled, task.hidden_labels, progress=False)
    assert result.predictions is not None
    found = result.predictions["probability_1"]
    return np.asarray(found.loc[task.labels.index[task.test]])


METHODS: dict[str, Callable[[Task, dict[str, Any]], Array]] = {
    "federated, trees by pattern": _patterns,
    "one model of all samples": partial(_booster, lambda task: (task.pooled, True)),
    "two models": _two_models,
    "intersection only": partial(_booster, lambda task: (task.pooled, ~task.lacks)),
    "zeros for missing blocks": partial(_booster, lambda task: (task.pooled.fillna(0.0), True)),
    "party a alone": partial(_booster, lambda task: (task.a, True)),
    "party b alone": partial(_booster, lambda task: (task.b, ~task.lacks)),
    "donors, then boosting": partial(
        _booster, lambda task: (pd.concat([task.a, from_donors(task)], axis=1), True)
    ),
    "LASER-VFL": _laser,
}
"""All but the federated one are central boosters in the same bins, or networks."""

OURS = "federated, trees by pattern"
