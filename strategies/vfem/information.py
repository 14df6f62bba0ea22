"""Standard errors: the Fisher information of the observed data, and its inverse.

Given the rows held, ``y_i ~ N(m_i, d_i)``, so the information about all parameters is
``sum of a_i a_i' / d_i + c_i c_i' / (2 d_i^2)`` with ``a_i``, ``c_i`` the derivatives of mean and
variance, and the usual terms of the normal rows. Four facts make it small:

* Around the parties' means (``g0 = b0 + sum of mu_k' beta_k`` for the intercept) the derivative of
  ``m_i`` by ``beta_k`` is ``x_ik - mu_k`` where the row is held, and 0 where it is missing.
* The labels depend on ``mu_k`` and ``Sigma_k`` only through the mean fit ``mu_k' beta_k`` and the
  explained variance ``q_k = beta_k' Sigma_k beta_k``, whose own variances are ``q_k / n_k`` and
  ``2 q_k^2 / n_k`` by the rows held; all other directions drop out (a Schur complement).
* ``d_i`` depends on ``beta_k`` only through ``2 (Sigma_k beta_k)' d beta_k``: one direction.
* Under the model, products of different parties' centred columns have expectation zero.

With the last, a party's covariance is its own inverse Gram matrix ``A_k`` corrected in two
directions (`expected_reductions`), and nothing of it leaves the party. Without it
(`dense_covariance`) the server needs ``sum of (x_ik - mu_k) (x_il - mu_l)' / d_i`` for every pair
of parties. The explained variance is free of division by zero because nuisances are scaled by
their own standard deviations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array
from strategies.vfem.expectation import EStep


@dataclass(frozen=True)
class Weights:
    """Sums over samples that the information needs."""

    # mean, variance: (n_parties + 1, n_parties + 1): ``sum of I_a I_b / d`` and ``sum of I_a I_b
    # / d^2``, where ``I_0 = 1`` and ``I_k`` says that party k lacks the sample
    mean: Array
    variance: Array
    explained: Array  # (n_parties,): ``q_k`` and ``n_k``
    n_observed: Array  # (n_parties,): ``q_k`` and ``n_k``

    @classmethod
    def at(cls, estep: EStep) -> "Weights":
        """Compute the sums at an E-step."""
        patterns, d = estep.patterns, estep.variance
        design = np.column_stack([np.ones(len(d)), patterns.missing])
        counts = patterns.counts
        variance = design.T @ (design * (counts / d**2)[:, None])
        variance[0, 0] += estep.prior.information(estep.sigma2)
        return cls(
            design.T @ (design * (counts / d)[:, None]),
            variance,
            estep.explained,
            patterns.n_observed,
        )

    @property
    def level(self) -> float:
        """Information about the level ``g0``, the mean fits being estimated as well."""
        spread = np.sqrt(self.explained / self.n_observed)
        scaled = self.mean[1:, 1:] * np.outer(spread, spread)
        side = self.mean[0, 1:] * spread
        system = np.eye(len(spread)) + scaled
        return float(self.mean[0, 0] - side @ np.linalg.solve(system, side))

    @property
    def spread(self) -> Array:
        """Information about each ``2 (Sigma_k beta_k)' d beta_k``, shape (n_parties, n_parties).

        ``sigma^2`` and the covariances are estimated as well.
        """
        side = self.variance[0, 1:]
        data = 0.5 * (self.variance[1:, 1:] - np.outer(side, side) / self.variance[0, 0])
        own = np.diag(2.0 * self.explained**2 / self.n_observed)
        information: Array = np.linalg.solve(np.eye(len(own)) + data @ own, data)
        return (information + information.T) / 2


@dataclass(frozen=True)
class Reductions:
    """What the server tells the parties, and keeps."""

    # (2, 2): ``R_k``: the covariance of ``beta_k`` is ``A^-1 - A^-1 U R_k U' A^-1``
    by_party: list[Array]
    level_variance: float  # Variance of the level ``g0``
    intercept_variance: float  # Variance of the intercept ``b0``


def directions(loading: Array, mean: Array) -> Array:
    """Return ``U_k``, shape (n_columns, 2): the directions in which parties act on each other.

    Shapes: loading (n_columns,): ``Sigma_k beta_k``; mean (n_columns,): mean of a row, in the
    units of the coefficients, before centring.
    """
    return np.column_stack([2.0 * loading, mean])


def expected_reductions(weights: Weights, crosses: Sequence[Array], intercept: bool) -> Reductions:
    """Couple the parties' covariances, products of different parties' columns being zero.

    Shapes: crosses (2, 2): ``U_k' A_k^-1 U_k`` of each party.
    """
    n_parties = len(crosses)
    coupling, cross = np.zeros((2 * n_parties, 2 * n_parties)), np.zeros((2 * n_parties,) * 2)
    coupling[0::2, 0::2] = weights.spread
    if not intercept:  # the level is then the sum of the mean fits
        coupling[1::2, 1::2] = weights.level
    for k, block in enumerate(crosses):
        cross[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = block
    reduction = np.linalg.solve((np.eye(2 * n_parties) + coupling @ cross), coupling)
    pull = cross[:, 1::2].sum(axis=1)  # covariances of all directions with the sum of mean fits
    shift = float(cross[1::2, 1::2].sum() - pull @ reduction @ pull)
    level = 1.0 / weights.level
    return Reductions(
        [np.asarray(reduction[2 * k : 2 * k + 2, 2 * k : 2 * k + 2]) for k in range(n_parties)],
        level,
        level + shift if intercept else 0.0,
    )


@dataclass(frozen=True)
class Parts:
    """What a party hands over where products across parties are wanted."""

    gram: Array  # (n_columns, n_columns): ``A_k``
    loading: Array  # (n_columns,): as in `directions`
    mean: Array  # (n_columns,): as in `directions`
    sums: Array  # (n_columns, n_parties + 1): ``sum of (x_ik - mu_k) I_a / d`` over the rows held


def dense_covariance(
    weights: Weights,
    parts: Sequence[Parts],
    products: Mapping[tuple[int, int], Array],
    intercept: bool,
) -> Array:
    """Invert the whole information, with products of different parties' columns.

    Shapes: products (k, l): ``sum of (x_ik - mu_k) (x_il - mu_l)' / d_i``; returns (1 + n_columns,
    1 + n_columns): covariance of intercept and coefficients, in the parties' order; the
    intercept's row and column are 0 if there is none.
    """
    n_parties = len(parts)
    sizes = [len(part.loading) for part in parts]
    starts = 1 + np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    p = int(starts[-1])
    # Level, coefficients, mean fits, explained variances (both scaled), sigma^2.
    size = p + 2 * n_parties + 1
    information = np.zeros((size, size))
    fits, spreads = np.arange(p, p + n_parties), np.arange(p + n_parties, size - 1)
    by_fit = np.sqrt(weights.explained / weights.n_observed)
    by_spread = weights.explained * np.sqrt(2.0 / weights.n_observed)
    information[0, 0] = weights.mean[0, 0]
    information[0, fits] = weights.mean[0, 1:] * by_fit
    information[np.ix_(fits, fits)] = weights.mean[1:, 1:] * np.outer(by_fit, by_fit)
    information[fits, fits] += 1.0
    information[spreads, spreads] += 1.0
    # How the variance d moves: rows are the constant and the indicators of missing blocks.
    moves = np.zeros((n_parties + 1, size))
    moves[0, size - 1] = 1.0
    for k, part in enumerate(parts):
        here = slice(starts[k], starts[k + 1])
        information[here, here] = part.gram
        information[0, here] = part.sums[:, 0]
        information[here, fits] = part.sums[:, 1:] * by_fit
        moves[1 + k, here] = 2.0 * part.loading
        moves[1 + k, spreads[k]] = by_spread[k]
        for other in range(k + 1, n_parties):
            there = slice(starts[other], starts[other + 1])
            information[here, there] = products[k, other]
    upper = np.triu(information)
    information = upper + np.triu(information, 1).T + 0.5 * moves.T @ weights.variance @ moves
    # The intercept is the level less the sum of mean fits; without one, the level is that sum.
    means = np.concatenate([part.mean for part in parts])
    if intercept:
        covariance = _inverse(information)[:p, :p]
        back = np.eye(p)
        back[0, 1:] = -means
        return np.asarray(back @ covariance @ back.T)
    forth = np.eye(size)[:, 1:]
    forth[0, : p - 1] = means
    covariance = np.zeros((p, p))
    covariance[1:, 1:] = _inverse(forth.T @ information @ forth)[: p - 1, : p - 1]
    return covariance


def _inverse(information: Array) -> Array:
    """Invert, after scaling to a unit diagonal; what cannot be told gets infinite variance."""
    scale = 1.0 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    return np.asarray(np.linalg.inv(information * np.outer(scale, scale)) * np.outer(scale, scale))


def is_positive_definite(matrix: Array) -> bool:
    """Whether a symmetric matrix is positive definite."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
