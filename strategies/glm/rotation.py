"""Products of different parties' columns, exactly, from randomly rotated columns.

Two parties draw one orthogonal matrix Q from a seed that the server does not know, and each sends
``Q X`` of its columns X. Since ``(Q X_k)' (Q X_l) = X_k' X_l``, the server multiplies what it gets.
If Q is uniform over the orthogonal group (Haar), the distribution of ``Q [X_k X_l]`` depends on
``[X_k X_l]' [X_k X_l]`` alone: the server learns these second moments and nothing beyond them.
Where sketches (`strategies.vfem.sketches`) are noisy, this is exact to rounding.

A matrix of all samples would cost their square. Samples are shuffled in an order that the seed
determines, and rotated in groups; the server so learns second moments of groups of `GROUP` samples
and not of whom. The peer knows Q and must not see what the other sent.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy.special import ndtri

Array = npt.NDArray[np.float64]

GROUP = 1024
"""Samples that are rotated together; the last group has up to twice as many."""

_CHUNK = 1 << 12


class SecretNormals:
    """Standard normal numbers from the key stream of a seed (ChaCha20), in order.

    Parameters
    ----------
    seed : bytes of length 32
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
        self._left = np.zeros(0)

    def integers(self, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` uniform integers of 64 bits."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def draw(self, count: int) -> Array:
        """Return the next `count` numbers."""
        if count > len(self._left):
            bits = self.integers(max(_CHUNK, count)) >> np.uint64(11)
            fresh = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53)
            self._left = np.concatenate([self._left, fresh])
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn


def rotate(matrix: Array, seed: bytes, group: int = GROUP) -> Array:
    """Rotate columns by the orthogonal matrix of a seed.

    Parameters
    ----------
    matrix : numpy.ndarray of shape (n_samples, n_columns)
        Rows in the order that both parties have.
    seed : bytes of length 32
        Shared with one other party (`flwr_vertical.crypto.pair_seeds.pair_seed`).
    group : int
        Samples rotated together.

    Returns
    -------
    numpy.ndarray of shape (n_samples, n_columns)
    """
    normals = SecretNormals(seed)
    order = np.argsort(normals.integers(len(matrix)), kind="stable")
    rotated = np.array(matrix, dtype=np.float64)[order]
    for start, end in _groups(len(matrix), group):
        _rotate_in_place(rotated[start:end], normals)
    return rotated


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
