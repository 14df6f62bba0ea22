"""A party's own subproblem of sharing ADMM: a weighted lasso for many fits at once.

The step (4.4) for party k minimises over ``beta_k``, for each fit (a value of lambda)

    ``<gradient, beta> + curvature / 2 (beta - start)' G (beta - start) + lambda |alpha o beta|_1``

with ``G = X_k' X_k / n``, which is made once: an iteration costs two products with ``X_k`` and
sweeps over a matrix of the number of columns, not of samples.
"""

import numpy as np

from flwr_vertical.arrays import Array

_MAX_SWEEPS = 400


def descend(
    gram: Array,
    gradient: Array,
    start: Array,
    curvature: Array,
    penalty: Array,
    tolerance: float = 1e-9,
) -> Array:
    """Solve the subproblem by coordinate descent, all fits side by side.

    Shapes: gram (n_columns, n_columns): ``G``, with a positive diagonal; gradient (n_columns,
    n_fits): of the smooth part at `start`; start (n_columns, n_fits): where the quadratic is
    centred; also the first guess; curvature (n_fits,): positive; penalty (n_columns, n_fits):
    ``lambda alpha``, at least 0; returns (n_columns, n_fits).
    """
    beta = start.copy()
    # Divided by the curvature, all fits share the matrix G.
    slope = gradient / curvature
    threshold = penalty / curvature
    diagonal = np.diag(gram)
    if not threshold.any():
        return np.asarray(start - np.linalg.lstsq(gram, slope, rcond=1e-12)[0])
    for _ in range(_MAX_SWEEPS):
        moved = np.zeros(beta.shape[1])
        for j in range(len(gram)):
            pull = diagonal[j] * beta[j] - slope[j]
            new = np.sign(pull) * np.maximum(np.abs(pull) - threshold[j], 0.0) / diagonal[j]
            change = new - beta[j]
            if change.any():
                slope += gram[:, j, None] * change
                beta[j] = new
                np.maximum(moved, np.abs(change), out=moved)
        if (moved <= tolerance * np.maximum(np.abs(beta).max(axis=0), 1e-3)).all():
            break
    return beta + 0.0  # no negative zeros


def violation(gradient: Array, beta: Array, penalty: Array) -> Array:
    """Return how far the optimality (KKT) conditions are from being met.

    Shapes: gradient (n_columns, n_fits): of the loss at the common fit; beta (n_columns, n_fits);
    penalty (n_columns, n_fits): ``lambda alpha``; returns (n_columns, n_fits): 0 where the
    conditions hold: ``gradient = -penalty sign(beta)``, or between the bounds where the
    coefficient is 0.
    """
    off = np.where(
        beta != 0, gradient + penalty * np.sign(beta), np.maximum(np.abs(gradient) - penalty, 0.0)
    )
    return np.abs(off)
