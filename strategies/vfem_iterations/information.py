"""Standard errors: the Fisher information of the observed data, and its inverse.

Given the rows held, ``y_i ~ N(m_i, d_i)``, so the information about all parameters is
``sum of a_i a_i' / d_i + c_i c_i' / (2 d_i^2)`` with ``a_i``, ``c_i`` the derivatives of mean and
variance, and the usual terms of the normal rows. Three facts make it small:

* Around the parties' means (``g0 = b0 + sum of mu_k' beta_k`` for the intercept) the derivative of
  ``m_i`` by ``beta_k`` is ``x_ik - mu_k`` where the row is held, and 0 where it is missing.
* The labels depend on ``mu_k`` and ``Sigma_k`` only through the mean fit ``mu_k' beta_k`` and the
  explained variance ``q_k = beta_k' Sigma_k beta_k``, whose own variances are ``q_k / n_k`` and
  ``2 q_k^2 / n_k`` by the rows held; all other directions drop out (a Schur complement).
* ``d_i`` depends on ``beta_k`` only through ``2 (Sigma_k beta_k)' d beta_k``: one direction.

What is left are the products ``sum of (x_ik - mu_k) (x_il - mu_l)' / d_i`` of two parties. Their
expectation under the model is zero; Algorithm 2 estimates them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags
from strategies.vfem_iterations.equations import EStep

_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class PartyMoments:
    """What a party hands over in the end, per unit of its columns and of standardised labels."""

    beta: Array  # (n_columns,)
    offset: float  # what centring the columns adds to the intercept
    mean: Array  # (n_columns,): ``mu_k``
    loading: Array  # (n_columns,): ``Sigma_k beta_k``
    gram: Array  # (n_columns, n_columns): ``sum of (x_ik - mu_k) (x_ik - mu_k)' / d_i``
    # (n_columns, n_parties + 1): ``sum of (x_ik - mu_k) I_a / d_i``; ``I_0 = 1``, and ``I_a`` says
    # that party a lacks the sample
    sums: Array

    @property
    def left_out(self) -> Flags:
        """Which columns take no part, as they follow from others; all else of them is 0."""
        return np.asarray(np.diag(self.gram) == 0)


def covariance_of(
    estep: EStep, parts: Sequence[PartyMoments], products: Mapping[tuple[int, int], Array]
) -> tuple[Array, float]:
    """Invert the information; sketched products are shrunk until they can be products at all.

    Shapes: products (k, l): see the module; returns (1 + n_columns, 1 + n_columns): covariance of
    the level at the means and of coefficients, 0 of a column that takes no part, NaN if the
    information is singular; and the share that was kept.
    """
    share = 1.0
    while share > _LEAST_SHARE:
        shrunk = {pair: share * product for pair, product in products.items()}
        try:
            covariance = _covariance(estep, parts, shrunk)
            scale = np.sqrt(np.abs(np.diag(covariance)))
            np.linalg.cholesky(covariance / np.outer(scale, scale))
        except np.linalg.LinAlgError:
            share *= 0.8
            continue
        left_out = 1 + np.flatnonzero(np.concatenate([part.left_out for part in parts]))
        covariance[left_out, left_out] = 0.0
        return covariance, share
    size = 1 + sum(len(part.beta) for part in parts)
    return np.full((size, size), np.nan), 0.0


def _covariance(
    estep: EStep, parts: Sequence[PartyMoments], products: Mapping[tuple[int, int], Array]
) -> Array:
    n_parties, counts, d = len(parts), estep.missing.total(), estep.variance
    absent = estep.missing.absent
    indicators = np.column_stack([np.ones(len(d)), absent])
    by_mean = indicators.T @ (indicators * (counts / d)[:, None])
    by_variance = indicators.T @ (indicators * (counts / d**2)[:, None])
    n_held = counts @ ~absent
    starts = np.cumsum([1, *(len(part.beta) for part in parts)])
    p = int(starts[-1])
    # Level, coefficients, mean fits, explained variances (both in units of their own standard
    # deviation, so that nothing is divided by zero), sigma^2.
    size = p + 2 * n_parties + 1
    information = np.zeros((size, size))
    fits, spreads = np.arange(p, p + n_parties), np.arange(p + n_parties, size - 1)
    by_fit = np.sqrt(estep.explained / n_held)
    by_spread = estep.explained * np.sqrt(2.0 / n_held)
    information[0, 0] = by_mean[0, 0]
    information[0, fits] = by_mean[0, 1:] * by_fit
    information[np.ix_(fits, fits)] = by_mean[1:, 1:] * np.outer(by_fit, by_fit)
    information[fits, fits] += 1.0
    information[spreads, spreads] += 1.0
    # How the variance d moves: rows are the constant and the indicators of missing blocks.
    moves = np.zeros((n_parties + 1, size))
    moves[0, size - 1] = 1.0
    for k, part in enumerate(parts):
        here = slice(starts[k], starts[k + 1])
        information[here, here] = part.gram + np.diag(part.left_out)
        if products or n_parties == 1:  # else their expectation, zero as that of products
            information[0, here] = part.sums[:, 0]
            information[here, fits] = part.sums[:, 1:] * by_fit
        moves[1 + k, here] = 2.0 * part.loading
        moves[1 + k, spreads[k]] = by_spread[k]
    for (k, other), product in products.items():
        information[starts[k] : starts[k + 1], starts[other] : starts[other + 1]] = product
    upper = np.triu(information)
    information = upper + np.triu(information, 1).T + 0.5 * moves.T @ by_variance @ moves
    return _inverse(information)[:p, :p]


def _inverse(information: Array) -> Array:
    """Invert, after scaling to a unit diagonal; what cannot be told gets infinite variance."""
    scale = 1.0 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    return np.asarray(np.linalg.inv(information * np.outer(scale, scale)) * np.outer(scale, scale))
