"""Scores of predictions: of classes by scikit-learn's measures, of numbers by their errors."""

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array

PROBABILITY = "probability_"
LOWER_IS_BETTER = ("log_loss", "brier", "rmse", "mae")
FIRST = ("auc", "accuracy", "rmse")
"""By which of the scores that there are settings are compared unless it is said."""

_LEAST = 1e-15


def score(predictions: pd.DataFrame, labels: Array) -> dict[str, float]:
    """Return how good predictions are.

    Shapes: predictions (n_samples, ...): ``prediction``; of classes also ``probability_<class>``
    or ``decision``; labels (n_samples,): true ones.
    """
    from sklearn import metrics  # parties import this package with every message

    chances = _probabilities(predictions, labels)
    if chances is None and "decision" not in predictions:
        return _of_numbers(predictions["prediction"].to_numpy(dtype=float), labels)
    if chances is None:
        said = predictions["prediction"].to_numpy(dtype=float)
    else:
        said = chances.columns.to_numpy(dtype=float)[chances.to_numpy().argmax(axis=1)]
    known = np.unique(labels)
    two = set(known) <= {0.0, 1.0} and (chances is None or len(chances.columns) == 2)
    average = {"average": "binary"} if two else {"average": "macro"}
    found = {
        "accuracy": float(metrics.accuracy_score(labels, said)),
        "f1": float(metrics.f1_score(labels, said, zero_division=0.0, **average)),
    }
    if len(known) > 1:
        found["auc"] = _auc(predictions, chances, labels, two)
    if chances is not None:
        own = chances.reindex(columns=_all(chances, known), fill_value=0.0).clip(_LEAST, 1.0)
        at = np.searchsorted(own.columns.to_numpy(dtype=float), labels)
        found["log_loss"] = float(-np.log(own.to_numpy()[np.arange(len(labels)), at]).mean())
        if two:
            found["brier"] = float(np.mean((chances[1.0].to_numpy() - labels) ** 2))
    return found


def _probabilities(predictions: pd.DataFrame, labels: Array) -> pd.DataFrame | None:
    """Return probabilities of classes, columns being classes in order; None of numbers."""
    names = [c for c in predictions.columns if str(c).startswith(PROBABILITY)]
    if names:
        found = predictions[names].set_axis([float(c[len(PROBABILITY) :]) for c in names], axis=1)
        return found.sort_index(axis=1)
    if "linear_predictor" in predictions and set(np.unique(labels)) <= {0.0, 1.0}:
        p = predictions["prediction"].to_numpy(dtype=float)
        if ((p >= 0.0) & (p <= 1.0)).all():
            return pd.DataFrame({0.0: 1.0 - p, 1.0: p}, index=predictions.index)
    return None


def _all(chances: pd.DataFrame, known: Array) -> list[float]:
    return sorted({*chances.columns, *known.tolist()})


def _auc(
    predictions: pd.DataFrame, chances: pd.DataFrame | None, labels: Array, two: bool
) -> float:
    from sklearn import metrics

    if two:
        ranked = predictions["decision"] if chances is None else chances[1.0]
        return float(metrics.roc_auc_score(labels, ranked))
    assert chances is not None
    found = [
        float(metrics.roc_auc_score(labels == c, chances[c]))
        for c in chances.columns
        if 0 < (labels == c).sum() < len(labels)
    ]
    return float(np.mean(found))


def _of_numbers(predicted: Array, labels: Array) -> dict[str, float]:
    from sklearn import metrics

    found = {
        "rmse": float(metrics.root_mean_squared_error(labels, predicted)),
        "mae": float(metrics.mean_absolute_error(labels, predicted)),
    }
    if np.ptp(labels) > 0:
        found["r2"] = float(metrics.r2_score(labels, predicted))
    return found
