"""VFL-GLM-VS in numbers, by equation numbers: one party's step and the server's.

Tang, Feng, Li and Wang, "Data Privatization in Vertical Federated Learning with Client-wise Missing
Problem", Section 4. With ``h = sum of X_k beta_k - eta``, an iteration of Algorithm 4 is

    (4.4)  beta_k <- argmin lambda |alpha_k o beta_k|_1 + <gamma, X_k beta_k>
                     + phi / 2 |h - X_k beta_k(t) + X_k beta_k|^2               at party k
    (4.5)  eta    <- argmin mean of psi(eta) - y eta, - <gamma, eta>
                     + phi / 2 |sum of X_k beta_k - eta|^2                      at the server
    (4.6)  gamma  <- gamma + phi h                                              at the server

until the residuals are within tolerances. Here gamma and phi are N times the paper's. Where it says
nothing, or where what it says fails:

* As printed, every party corrects all of ``h`` in (4.4): K parties with like columns overshoot it K
  times, and the iteration diverges. The quadratic is K times as steep here: sharing ADMM as of Boyd
  et al. (2011, Section 7.3), and (4.4) itself for one party.
* An intercept is found with ``eta`` in (4.5).
* ``phi`` is the labels' mean variance ``psi''`` in the model without columns.
* Tangents of a concave penalty (LLA) are drawn again whenever a fit has met the tolerances,
  `lla_steps` times, from a lasso on.
"""

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.crypto.normals import SecretNormals
from strategies.glm.penalties import lla_weights
from strategies.linear.families import Family

BOUND = 1.0
"""Largest fit of one sample by one party that the promise covers, in standardised units."""

_SWEEPS, _STILL = 10, 1e-9  # of coordinate descent, which the next round goes on with
_NEWTON, _LONGEST, _PRECISION = 60, 4.0, 1e-9


class ColumnBlock:
    """One party's columns over the samples of the fit; it knows no protocol.

    Shapes: z (n_samples, n_columns): standardised columns; strengths (n_lambdas,): values of
    lambda.
    """

    def __init__(self, z: Array, strengths: Array, penalty: str) -> None:
        self.z, self.strengths, self.penalty = z, strengths, penalty
        self.gram = z.T @ z / len(z)
        # Constant columns are zero after centring, and so are their coefficients.
        empty = np.flatnonzero(np.diag(self.gram) <= 1e-14)
        self.gram[empty, empty] = 1.0

    def weights(self, beta: Array, fits: Indices) -> Array:
        """Return ``alpha`` of (4.3), shape (n_columns, n_fits)."""
        return lla_weights(beta, self.strengths[fits], self.penalty)

    def step(self, beta: Array, weights: Array, fits: Indices, slope: Array, steep: float) -> Array:
        """Take the step (4.4) of some fits by coordinate descent; slope: ``gamma + phi h``."""
        pull = self.z.T @ slope / len(self.z) / steep
        threshold = self.strengths[fits] * weights / steep
        if not threshold.any():
            return np.asarray(beta - np.linalg.lstsq(self.gram, pull, rcond=1e-12)[0])
        beta, diagonal = beta.copy(), np.diag(self.gram)
        for _ in range(_SWEEPS):
            moved = np.zeros(beta.shape[1])
            for j in range(len(beta)):
                to = diagonal[j] * beta[j] - pull[j]
                new = np.sign(to) * np.maximum(np.abs(to) - threshold[j], 0.0) / diagonal[j]
                change = new - beta[j]
                if change.any():
                    pull += self.gram[:, j, None] * change
                    beta[j] = new
                    np.maximum(moved, np.abs(change), out=moved)
            if (moved <= _STILL * np.maximum(np.abs(beta).max(axis=0), 1e-3)).all():
                break
        return beta + 0.0  # no negative zeros

    def with_noise(self, beta: Array, sigma: float, key: bytes) -> Array:
        """Add noise with covariance ``sigma^2 (X_k' X_k)^-1`` (VFL-ADMM-DP, Hu et al., 2020)."""
        values, vectors = np.linalg.eigh(self.gram * len(self.z))
        kept = values > 1e-9 * values[-1]
        root = vectors[:, kept] / np.sqrt(values[kept])
        drawn = SecretNormals(key).draw(int(kept.sum()) * beta.shape[1])
        return np.asarray(beta + sigma * (root @ drawn.reshape(-1, beta.shape[1])))


def noise_scale(epsilon: float, delta: float) -> float:
    """Return sigma of the Gaussian mechanism (Dwork and Roth, 2014, Theorem A.1)."""
    return float(2.0 * BOUND * np.sqrt(2.0 * np.log(1.25 / delta)) / epsilon)


def composed(sigma: float, delta: float, n_releases: int) -> float:
    """Return epsilon of all releases together (Bun and Steinke, 2016, Proposition 1.3)."""
    rho = n_releases * (2.0 * BOUND) ** 2 / (2.0 * sigma**2)
    return float(rho + 2.0 * np.sqrt(rho * np.log(1.0 / delta)))


def largest_correlation(z: Array, residual: Array) -> float:
    """Return the lambda from which on all coefficients are zero, by residuals without columns."""
    return float(np.abs(z.T @ residual).max(initial=0.0) / len(z))


def nearest(
    family: Family, y: Array, centre: Array, strength: float, eta: Array, level: Array
) -> tuple[Array, Array]:
    """Take the step (4.5): minimise ``sum of psi(eta) - y eta + phi / 2 (eta - level - centre)^2``.

    One equation for each sample, and one for the intercept; Newton's matrix is an arrow.

    Shapes: y (n_samples, 1); centre (n_samples, n_fits); eta (n_samples, n_fits), level
    (n_fits,): first guesses; returns the same.
    """
    level = level.copy()
    for _ in range(_NEWTON):
        mean = family.mean(eta)
        curvature = family.variance_of(mean)
        slope = mean - y + strength * (eta - level - centre)
        weight = 1.0 / (curvature + strength)
        # Eliminating the steps of eta leaves one equation for the intercept.
        pulled = (mean - y - curvature * weight * slope).sum(axis=0)
        shift = -pulled / np.maximum(strength * (curvature * weight).sum(axis=0), 1e-300)
        longest = np.inf if family.has_dispersion else _LONGEST  # a quadratic is met in one step
        shift = np.clip(shift, -longest, longest)
        step = np.clip((strength * shift - slope) * weight, -longest, longest)
        eta, level = eta + step, level + shift
        if max(np.abs(step).max(initial=0.0), np.abs(shift).max(initial=0.0)) < _PRECISION:
            break
    return eta, level


def bic(family: Family, y: Array, eta: Array, n_selected: Indices) -> Array:
    """Return the BIC of fits, up to a constant.

    The paper prints ``f(beta) + df log(N)`` with a mean loss f, in which the second term would rule
    alone; the usual criterion is meant: minus twice the log likelihood, and ``df log(N)``. The
    noise variance of a gaussian fit is its own (Wang, Li and Tsai, 2007).

    Shapes: y (n_samples,); eta (n_samples, n_fits); returns (n_fits,).
    """
    n = len(y)
    deviance = family.deviance(y[:, None], eta)
    if family.has_dispersion:
        deviance = n * np.log(np.maximum(deviance, 1e-300) / n)
    return np.asarray(deviance + n_selected * np.log(n))
