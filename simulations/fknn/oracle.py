"""Centralised KNN imputation on pooled tables, straight from the paper's equations.

It shares no code with the federated method and holds the whole n x n matrix, so that a mistake in
one does not hide in the other.
"""

from collections.abc import Sequence

import numpy as np

from flwr_vertical.arrays import Array


def distances(tables: Sequence[Array], combination: str) -> Array:
    """Return the distance of all pairs of samples.

    Shapes: tables (n_samples, p_k): the parties' tables, NaN = missing; returns (n_samples,
    n_samples): infinite where nothing is shared at all, and from each sample to itself.
    """
    n = len(tables[0])
    total, defined = np.zeros((n, n)), np.zeros((n, n))
    for table in tables:
        for p in range(n):
            squares = (table - table[p]) ** 2
            shared = (~np.isnan(squares)).sum(axis=1)
            mean = np.where(shared > 0, np.nansum(squares, axis=1) / np.maximum(shared, 1), 0.0)
            total[p] += np.sqrt(mean) if combination == "roots" else mean
            defined[p] += shared > 0
    if combination == "party-mean":
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.where(defined > 0, total / defined, np.inf)
    np.fill_diagonal(total, np.inf)
    return total


def impute(table: Array, distance: Array, n_neighbors: int) -> Array:
    """Fill each missing cell with the mean of its nearest donors that have it (Eq. 13)."""
    values = table.copy()
    for i, j in np.argwhere(np.isnan(table)):
        donors = np.argsort(distance[i], kind="stable")
        able = donors[~np.isnan(table[donors, j]) & np.isfinite(distance[i, donors])]
        values[i, j] = table[able[:n_neighbors], j].mean()
    return values
