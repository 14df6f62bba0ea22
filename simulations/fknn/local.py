"""Imputers that see the guest's data alone: the comparison of the paper's Section 4.3.2.

The paper names them (MEAN, LR, KNN, RF) and no more. So they come in three readings:

``strong``
    The usual ones: LR and RF regress each column on the other ones, iterating over columns
    (`sklearn.impute.IterativeImputer`); KNN is `sklearn.impute.KNNImputer`.
``label``
    The same, and the label, which the guest holds too, serves as one more complete column.
``printed``
    What gives the paper's numbers: its Table 1 lists ``idx`` and the label among the guest's
    columns, and they are its only complete ones. LR and RF regress each column on the label; KNN
    takes distances over the whole file, where the row number ``idx`` (1 to 800) outweighs features
    of unit variance; K = 3.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import LinearRegression

from flwr_vertical.arrays import Array

READINGS = ("strong", "label", "printed")
PRINTED_NEIGHBORS = 3


def local_imputations(
    table: pd.DataFrame,
    labels: "pd.Series[float]",
    *,
    n_neighbors: int,
    trees: int,
    lr_iterations: int,
    rf_iterations: int,
    seed: int,
) -> Iterator[tuple[str, Array]]:
    """Yield the name and the imputed table of each local method.

    Shapes: table (n_samples, n_features): the guest's features with NaN where cells are missing,
    indexed by ``idx``; labels (n_samples,): complete; returns (n_samples, n_features).
    """
    X = table.to_numpy(dtype=float)
    y = labels.to_numpy(dtype=np.float64)[:, None].astype(np.float64)
    yield "MEAN", np.where(np.isnan(X), np.nanmean(X, axis=0), X)

    def forest() -> Any:
        return RandomForestRegressor(n_estimators=trees, random_state=seed)

    for reading in READINGS:
        if reading == "printed":
            idx = table.index.to_numpy(dtype=float)[:, None]
            yield "printed/LR", _on_complete(X, y, LinearRegression())
            knn = KNNImputer(n_neighbors=PRINTED_NEIGHBORS)
            yield "printed/KNN", knn.fit_transform(np.hstack([X, idx, y]))[:, : X.shape[1]]
            yield "printed/RF", _on_complete(X, y, forest())
            continue
        Z = np.hstack([X, y]) if reading == "label" else X
        knn = KNNImputer(n_neighbors=n_neighbors)
        yield f"{reading}/LR", _iterated(Z, LinearRegression(), lr_iterations)[:, : X.shape[1]]
        yield f"{reading}/KNN", knn.fit_transform(Z)[:, : X.shape[1]]
        yield f"{reading}/RF", _iterated(Z, forest(), rf_iterations)[:, : X.shape[1]]


def _iterated(Z: Array, regressor: Any, iterations: int) -> Array:
    imputer = IterativeImputer(regressor, max_iter=iterations, random_state=0)
    with warnings.catch_warnings():
        # A forest is random, so its sweeps never stop changing; the number of sweeps is the rule.
        warnings.simplefilter("ignore", ConvergenceWarning)
        values: Array = imputer.fit_transform(Z)
    return values


def _on_complete(X: Array, predictors: Array, regressor: Any) -> Array:
    """Regress each column on complete ones and predict its missing cells."""
    values = X.copy()
    for j in range(X.shape[1]):
        missing = np.isnan(X[:, j])
        if missing.any():
            regressor.fit(predictors[~missing], X[~missing, j])
            values[missing, j] = regressor.predict(predictors[missing])
    return values
