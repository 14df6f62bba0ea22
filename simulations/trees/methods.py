"""The methods that are compared: from a task to predictions of its samples without a label."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neighbors import NearestNeighbors

from flwr_vertical import simulate
from flwr_vertical.arrays import Array
from simulations.trees.data import Task, binned
from strategies.trees import VerticalGBDT

_DONORS = 5


def federated(task: Task, objective: str, booster: dict[str, Any], histograms: str) -> Array:
    """Predict by `VerticalGBDT`: probabilities of classes, or numbers.

    Shapes: returns (n_test, n_classes).
    """
    strategy = VerticalGBDT(objective=objective, histograms=histograms, **booster)
    result = simulate(strategy, task.tables, task.hidden_labels, progress=False)
    assert result.predictions is not None
    found = result.predictions.loc[task.labels.index[task.test]]
    classes = [name for name in found if str(name).startswith("probability_")]
    return found[classes].to_numpy() if classes else found["prediction"].to_numpy()


def central(
    x: pd.DataFrame,
    y: "pd.Series[float]",
    fit: npt.NDArray[np.bool_],
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


def _shared(task: Task, settings: dict[str, Any]) -> Array:
    return _scores(task, task.pooled, np.ones_like(task.lacks), settings)


def _scores(
    task: Task, x: pd.DataFrame, fit: npt.NDArray[np.bool_], settings: dict[str, Any]
) -> Array:
    booster = settings["booster"]
    codes = binned(x, booster["n_bins"])
    model = central(codes, task.labels, fit & ~task.test, booster)
    return np.asarray(model.predict_proba(codes[task.test])[:, 1])


def _intersection(task: Task, settings: dict[str, Any]) -> Array:
    return _scores(task, task.pooled, ~task.lacks, settings)


def _two_models(task: Task, settings: dict[str, Any]) -> Array:
    both = _intersection(task, settings)
    return np.where(task.lacks[task.test], _party_a(task, settings), both)


def _zeros(task: Task, settings: dict[str, Any]) -> Array:
    return _scores(task, task.pooled.fillna(0.0), np.ones_like(task.lacks), settings)


def _party_a(task: Task, settings: dict[str, Any]) -> Array:
    return _scores(task, task.a, np.ones_like(task.lacks), settings)


def _party_b(task: Task, settings: dict[str, Any]) -> Array:
    return _scores(task, task.b, ~task.lacks, settings)


def _donors(task: Task, settings: dict[str, Any]) -> Array:
    completed = pd.concat([task.a, from_donors(task)], axis=1)
    return _scores(task, completed, np.ones_like(task.lacks), settings)


def from_donors(task: Task) -> pd.DataFrame:
    """Return party b's table, samples that it lacks filled with the mean of their nearest donors.

    That is what FKNN imputes where all of b's columns are missing and a's are complete: distances
    are over a's columns, each divided by its standard deviation. The whole table would take FKNN
    500 million pairs; a test compares the two on a small one.
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
    "federated, trees by pattern": _patterns, "one model of all samples": _shared,
    "two models": _two_models, "intersection only": _intersection,
    "zeros for missing blocks": _zeros, "party a alone": _party_a, "party b alone": _party_b,
    "donors, then boosting": _donors, "LASER-VFL": _laser,
}  # fmt: skip
"""All but the federated one are central boosters in the same bins, or networks."""

OURS = "federated, trees by pattern"
