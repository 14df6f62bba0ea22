"""How far the parties' columns overlap: the largest eigenvalue of the sum of their projections.

With ``P_k`` the projection on the columns of party k, ``sum of P_k`` has eigenvalues from 0 to K: 1
where columns of different parties are orthogonal, K where all share a direction. Steps taken at
the same time by all parties must be shortened by the largest.
"""

import numpy as np

from flwr_vertical.arrays import Array

_MARGIN = 1.1


class Lanczos:
    """The Lanczos iteration, one product at a time (Golub and Van Loan, Section 10.1)."""

    def __init__(self, size: int, seed: int = 0) -> None:
        first = np.random.default_rng(seed).standard_normal(size)
        self._vectors: list[Array] = [first / np.linalg.norm(first)]
        self._products: list[Array] = []

    @property
    def steps(self) -> int:
        """Products so far."""
        return len(self._products)

    @property
    def probe(self) -> Array:
        """The vector whose product is asked for next, shape (size,)."""
        return self._vectors[-1]

    def add(self, product: Array) -> None:
        """Take the product of the matrix and `probe`."""
        self._products.append(product)
        rest = product
        for _ in range(2):  # twice, for rounding
            for vector in self._vectors:
                rest = rest - vector * (vector @ rest)
        length = float(np.linalg.norm(rest))
        self._vectors.append(rest / length if length > 1e-8 else np.zeros_like(rest))

    @property
    def bound(self) -> float:
        """The largest eigenvalue found, and a margin for what was not; at least 1."""
        basis = np.column_stack(self._vectors[: self.steps])
        projected = basis.T @ np.column_stack(self._products)
        values = np.linalg.eigvalsh((projected + projected.T) / 2)
        return max(1.0, _MARGIN * float(values[-1]))
