"""VFL-ADMM-DP: noise on a party's coefficients before their fit is released.

The baseline of Tang, Feng, Li and Wang (Section 5.1), after Hu, Liu, Ge, Kong, Jiang and Niu
(2020), "Learning Privately over Distributed Features: An ADMM Sharing Approach": in every iteration
a party adds normal noise with covariance ``sigma^2 (X_k' X_k)^-1`` to ``beta_k``, so that the fit
``X_k beta_k`` gets noise of the same size in every direction of its columns, and everybody goes on
from the noisy value.

What is promised. One party's row is changed at a time. Its fit then changes at that sample by at
most twice the bound on a fit, and at the others through the coefficients. The latter is taken as
part of the bound, as in the paper, whose own constant needs the loss's Lipschitz constant and
normalised columns. The guarantee holds for fits within the bound, is one of ``(epsilon, delta)``
for each round, and adds up over the rounds (Dwork, Rothblum and Vadhan, 2010; here by
zero-concentrated accounting).

What is not. The noise lies in the span of the party's columns, as the fit does. So whoever knows as
many rows as there are columns solves for the noisy coefficients, and reads the columns of any other
row off its fit: a change of the columns is told exactly (`simulations.audits` finds it). The proofs
of both papers are about coefficients with the columns given. So this is a baseline to compare with,
not a mechanism to rely on.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.crypto.normals import SecretNormals
from strategies.glm.sums.block import Block

BOUND = 1.0
"""Largest fit of one sample by one party that the promise covers, in standardised units."""


def noise_scale(epsilon: float, delta: float) -> float:
    """Return sigma of the Gaussian mechanism (Dwork and Roth, 2014, Theorem A.1)."""
    return float(2.0 * BOUND * np.sqrt(2.0 * np.log(1.25 / delta)) / epsilon)


def composed(sigma: float, delta: float, n_releases: int) -> float:
    """Return epsilon of all releases together (Bun and Steinke, 2016, Proposition 1.3)."""
    rho = n_releases * (2.0 * BOUND) ** 2 / (2.0 * sigma**2)
    return float(rho + 2.0 * np.sqrt(rho * np.log(1.0 / delta)))


@dataclass(frozen=True)
class Noise:
    """Noise on coefficients."""

    sigma: float  # Standard deviation of the fit's noise in each direction of the party's columns

    def add(self, block: Block, beta: Array, key: bytes) -> Array:
        """Return noisy coefficients, shape (n_columns, n_fits).

        Shapes: beta (n_columns, n_fits): what noise is added to.
        """
        normals = SecretNormals(key)
        values, vectors = np.linalg.eigh(block.gram * len(block.z))
        kept = values > 1e-9 * values[-1]
        root = vectors[:, kept] / np.sqrt(values[kept])
        drawn = normals.draw(int(kept.sum()) * beta.shape[1]).reshape(-1, beta.shape[1])
        return np.asarray(beta + self.sigma * (root @ drawn))

    @staticmethod
    def cut(beta: Array, strengths: Array, free: npt.NDArray[np.bool_]) -> Array:
        """Set penalised coefficients below lambda to zero: noise has made all others."""
        return np.where((np.abs(beta) < strengths) & ~free[:, None], 0.0, beta)
