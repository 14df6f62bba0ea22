"""Products of different parties' columns, exactly, from randomly rotated columns.

Two parties draw one orthogonal matrix Q from a seed that the server does not know, and each sends
``Q X`` of its columns X. Since ``(Q X_k)' (Q X_l) = X_k' X_l``, the server multiplies what it gets.
If Q is uniform over the orthogonal group (Haar), the distribution of ``Q [X_k X_l]`` depends on
``[X_k X_l]' [X_k X_l]`` alone: the server learns these second moments and nothing beyond them.
Where `sketches` are noisy, this is exact to rounding.

A matrix of all samples would cost their square. Samples are shuffled in an order that the seed
determines, and rotated in groups; the server so learns second moments of groups of `GROUP` samples
and not of whom. The peer knows Q and must not see what the other sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.crypto.normals import SecretNormals

GROUP = 1024
"""Samples that are rotated together; the last group has up to twice as many."""

_ROTATED = "rotated:"


def rotate(matrix: Array, seed: bytes, group: int = GROUP) -> Array:
    """Rotate columns by the orthogonal matrix of a seed.

    Shapes: matrix (n_samples, n_columns): rows in the order that both parties have; returns
    (n_samples, n_columns).
    """
    normals = SecretNormals(seed)
    order = np.argsort(normals.integers(len(matrix)), kind="stable")
    rotated = np.array(matrix, dtype=np.float64)[order]
    for start, end in _groups(len(matrix), group):
        _rotate_in_place(rotated[start:end], normals)
    return rotated


def rotate_for_peers(matrix: Array, seeds: Mapping[str, bytes]) -> dict[str, Array]:
    """Rotate a party's columns, once for each other party.

    Parameters
    ----------
    matrix : numpy.ndarray of shape (n_samples, n_columns)
        Samples in the order that all parties have; 0 where the party lacks one.
    seeds : Mapping[str, bytes]
        Shared with each other party, by its name (`PairKeySteps.seeds`).

    Returns
    -------
    dict[str, numpy.ndarray of shape (n_samples, n_columns)]
        For the server only, as part of a step's answer: the peer could turn its own back.
    """
    return {f"{_ROTATED}{name}": rotate(matrix, seed) for name, seed in seeds.items()}


def products_of_rotated(
    told: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> dict[tuple[int, int], Array]:
    """Multiply at the server what the parties made by `rotate_for_peers`.

    Parameters
    ----------
    told : Mapping[str, Mapping[str, numpy.ndarray]]
        By party, its answer.
    names : Sequence[str]
        The parties.

    Returns
    -------
    dict of (k, l) with k < l to numpy.ndarray of shape (n_columns_k, n_columns_l)
        ``X_k' X_l``, parties by their place in `names`.
    """
    return {
        (k, other): told[one][f"{_ROTATED}{names[other]}"].T
        @ told[names[other]][f"{_ROTATED}{one}"]
        for k, one in enumerate(names)
        for other in range(k + 1, len(names))
    }


def _groups(n_samples: int, group: int) -> Iterator[tuple[int, int]]:
    count = max(n_samples // group, 1)
    for k in range(count):
        yield k * group, n_samples if k == count - 1 else (k + 1) * group


def _rotate_in_place(rows: Array, normals: SecretNormals) -> None:
    """Multiply by a Haar matrix, a product of reflections (Stewart, 1980)."""
    n = len(rows)
    signs = np.where(normals.draw(1) < 0, -1.0, 1.0)
    rows[n - 1] *= signs[0]
    for j in range(n - 2, -1, -1):
        vector = normals.draw(n - j).copy()
        sign = -1.0 if vector[0] < 0 else 1.0
        vector[0] += sign * np.linalg.norm(vector)
        below = rows[j:]
        below -= np.outer(vector, (2.0 / (vector @ vector)) * (vector @ below))
        rows[j] *= -sign
