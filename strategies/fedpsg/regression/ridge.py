"""Ridge regressions from moments: what is missing in a sample on all that is known of it.

Chained equations (MICE; van Buuren and Groothuis-Oudshoorn, 2011) regress each attribute on all
others, fill in, and begin again until nothing changes. Where a party lacks whole samples, each
regression is learnt from the same complete ones, so its coefficients do not change either, and the
end is known at once: the linear regression of what is missing on what is known. That is what is
solved here; with few moments, not with rows. The penalty is that of the least generalised cross
validation (Golub, Heath and Wahba, 1979, (1.4)), which needs moments only, too.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices

PENALTIES = np.logspace(-6, 1, 15)
"""Tried, in units of a column of variance 1."""


@dataclass(frozen=True)
class RowMoments:
    """First and second moments of columns."""

    n_rows: int  # Samples
    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns)

    @classmethod
    def of_sums(cls, n_rows: int, sums: Array, products: Array) -> "RowMoments":
        """Make them of sums over rows, shapes (n_columns,) and (n_columns, n_columns)."""
        mean = sums / n_rows
        return cls(n_rows, mean, products / n_rows - np.outer(mean, mean))

    @classmethod
    def of_rows(cls, columns: Array) -> "RowMoments":
        """Make them of rows, shape (n_rows, n_columns)."""
        return cls.of_sums(len(columns), columns.sum(axis=0), columns.T @ columns)


@dataclass(frozen=True)
class Regression:
    """Coefficients of a regression."""

    weights: Array  # (n_known, n_targets)
    offset: Array  # (n_targets,)
    # (n_targets, n_targets): A square root of the covariance of what is left over: ``root @
    # root.T``
    root: Array
    penalty: float  # Chosen


def regress(moments: RowMoments, known: Indices, targets: Indices) -> Regression:
    """Regress some columns on others."""
    n = moments.n_rows
    within = moments.covariance[np.ix_(known, known)]
    across = moments.covariance[np.ix_(known, targets)]
    own = moments.covariance[np.ix_(targets, targets)]
    values, vectors = np.linalg.eigh(within)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ across
    spread = np.maximum(np.diag(own), 1e-12)
    best = np.inf, 0.0
    for penalty in PENALTIES if len(known) else ():
        shrunk = 1.0 / (values + penalty)
        explained = (turned**2 * (2.0 * shrunk - values * shrunk**2)[:, None]).sum(axis=0)
        left = n - 1.0 - (values * shrunk).sum()
        if left <= 0.0:
            continue
        score = float(((spread - explained) / spread).sum()) / left**2
        best = min(best, (score, float(penalty)))
    penalty = best[1] if np.isfinite(best[0]) else float(PENALTIES[-1])
    weights = vectors @ (turned / (values + penalty)[:, None])
    left_over = own - weights.T @ across - across.T @ weights + weights.T @ within @ weights
    roots, directions = np.linalg.eigh(left_over)
    root = directions * np.sqrt(np.maximum(roots, 0.0))
    offset = moments.mean[targets] - moments.mean[known] @ weights
    return Regression(weights, offset, root, penalty)
