"""Values drawn around predictions, for ``rule="draw"``.

Noise of few rows has correlations of its own, with what is predicted and between columns, and these
are what a drawn table loses most by. So noise is balanced: its mean is 0, its covariance the wanted
one and its product with the predictions 0 in the very rows that are drawn, not only on average
(compare balanced sampling: Deville and Tillé, "Efficient balanced sampling: the cube method",
2004). Each row's noise is normal up to terms of the order of 1 / rows.

A level is the one whose column is largest after the noise. Linear predictions of 0 and 1 with
normal noise do not give each level as often as is predicted, so each column has an offset for
which they do (as thresholds of a probit model are).
"""

import numpy as np
from scipy.stats import norm

from flwr_vertical.arrays import Array
from strategies.fedpsg.regression.features import Features

ROWS_FOR_EACH_COLUMN = 4
"""Least rows for each column in which noise is balanced; in fewer, little noise would be left."""

_SIMULATED = 4000  # rows at least from which offsets are found
_STEPS, _DAMPED = 40, 0.7


def draw_codes(
    features: Features,
    predicted: Array,
    attributes: list[int],
    root: Array,
    rng: np.random.Generator,
) -> Array:
    """Return codes of some attributes, drawn.

    Shapes: predicted (n, n_target_columns): what is expected of these attributes' columns; root
    (n_target_columns, n_target_columns): A square root of the noise's covariance; returns (n,
    n_attributes).
    """
    values = predicted + balanced_noise(predicted, rng) @ root.T
    at = 0
    for j in attributes:
        width = max(features.n_levels[j], 1)
        block = slice(at, at + width)
        if width > 1:
            values[:, block] += level_offsets(predicted[:, block], root[block], rng)
        at += width
    return features.decode(values, attributes)


def balanced_noise(predicted: Array, rng: np.random.Generator) -> Array:
    """Return standard normal noise, balanced where there are rows enough; shape as `predicted`."""
    noise = rng.normal(size=predicted.shape)
    n, width = noise.shape
    if n < ROWS_FOR_EACH_COLUMN * (width + 1):
        return noise
    basis, _ = np.linalg.qr(np.column_stack([np.ones(n), predicted]))
    noise -= basis @ (basis.T @ noise)
    spread, directions = np.linalg.eigh(noise.T @ noise / n)
    balanced: Array = noise @ (directions / np.sqrt(spread)) @ directions.T
    return balanced


def level_offsets(predicted: Array, root: Array, rng: np.random.Generator) -> Array:
    """Return what is added to the columns of a level so that each is drawn as often as predicted.

    Shapes: predicted (n, n_levels); root (n_levels, n_noise); returns (n_levels,): 0 where nothing
    is to be drawn, since there is no noise or no row.
    """
    n, n_levels = predicted.shape
    shares = np.clip(predicted, 0.0, None).sum(axis=0)
    if not n or not root.any() or not shares.any():
        return np.zeros(n_levels)
    # Offsets for the very rows drawn would make the likeliest level of few rows a certain one.
    rows = np.repeat(predicted, -(-_SIMULATED // n), axis=0)
    rows = rows + rng.normal(size=(len(rows), root.shape[1])) @ root.T
    least = 0.5 / len(rows)
    wanted = norm.ppf(np.clip(shares / shares.sum(), least, 1.0 - least))
    spread, offsets = np.sqrt(np.square(root).sum(axis=1)), np.zeros(n_levels)
    for _ in range(_STEPS):
        found = np.bincount((rows + offsets).argmax(axis=1), minlength=n_levels) / len(rows)
        offsets += _DAMPED * spread * (wanted - norm.ppf(np.clip(found, least, 1.0 - least)))
    return offsets
