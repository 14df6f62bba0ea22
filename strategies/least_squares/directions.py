"""Least squares on directions that come one at a time."""

import numpy as np
from scipy.linalg import solve_triangular

from flwr_vertical.arrays import Array


class Directions:
    """Directions in the space of fits, and what they leave of the labels.

    Shapes: y (n_samples,): labels, less their mean if there is an intercept.
    """

    def __init__(self, y: Array) -> None:
        self.residual = y
        self.tss = float(y @ y)
        self._orthonormal: list[Array] = []
        self._triangle: list[Array] = []  # columns of R in: directions = orthonormal R
        self._length: list[float] = []  # of the labels along each orthonormal vector
        self._used: list[bool] = []

    @property
    def rss(self) -> float:
        """Sum of squares of the residual."""
        return float(self.residual @ self.residual)

    def add(self, direction: Array, noise: float) -> bool:
        """Fit one more direction; return False if nothing of it is new.

        Shapes: direction (n_samples,).
        """
        rest, column = direction.copy(), np.zeros(len(self._orthonormal) + 1)
        for _ in range(2):  # twice, for rounding
            for j, vector in enumerate(self._orthonormal):
                share = float(vector @ rest)
                column[j] += share
                rest -= share * vector
        column[-1] = np.linalg.norm(rest)
        noise = max(4.0 * noise * np.sqrt(len(rest)), 1e-13 * float(np.linalg.norm(direction)))
        if column[-1] <= noise:
            return False
        vector = rest / column[-1]
        length = float(vector @ self.residual)
        self.residual = self.residual - length * vector
        self._orthonormal.append(vector)
        self._triangle.append(column)
        self._length.append(length)
        self._used.append(True)
        return True

    def skip(self) -> None:
        """Leave out a direction that the parties keep."""
        self._used.append(False)

    def combination(self) -> Array:
        """Return how the directions add up to the fit, shape (n_directions,)."""
        n = len(self._length)
        triangle = np.zeros((n, n))
        for j, column in enumerate(self._triangle):
            triangle[: j + 1, j] = column
        shares = np.zeros(len(self._used))
        if n:
            shares[np.array(self._used, dtype=bool)] = solve_triangular(triangle, self._length)
        return shares
