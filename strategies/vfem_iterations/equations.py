"""Algorithm 1 of Tang, Wang, Feng and Li: what a party computes, and what the server does.

Notation of the paper, Section 3: party k holds rows ``x_ik``, normal with mean ``mu_k`` and
covariance ``Sigma_k``; a row is missing as a whole. With
``d_i = sigma^2 + sum of beta_k' Sigma_k beta_k over the parties missing at i`` (the paper's
``v_2i``) and ``r_i = (y_i - fit_i) / d_i`` (its ``v_3i / v_2i``), where the fit of a missing row is
``mu_k' beta_k``, everything in Eqs. (4) to (8) is local to a party:

* conditional mean of a missing row (Eq. 4): ``mu_k + Sigma_k beta_k r_i``;
* its conditional covariance (Eq. 4): ``Sigma_k - Sigma_k beta_k beta_k' Sigma_k / d_i``;
* residual of the completed row: ``e_i = sigma^2 r_i``;
* ``alpha_i[k] = Sigma_k beta_k sigma^2 / d_i``, and so ``v_4i = s_i sigma^2 / d_i`` with
  ``s_i = d_i - sigma^2``.

``d`` takes one value for each pattern of missing parties. Missing rows enter through two sums, so
a party needs ``r_i`` for the rows that it holds and these.

Standard errors are by the Fisher information of the observed data, inverted. Given the rows held,
``y_i ~ N(m_i, d_i)``, so the information about all parameters is ``sum of a_i a_i' / d_i + c_i c_i'
/ (2 d_i^2)`` with ``a_i``, ``c_i`` the derivatives of mean and variance, and the usual terms of the
normal rows. Three facts make it small:

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

from flwr_vertical.arrays import Array, Flags, Indices

_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class PartyParameters:
    """Coefficients of a party's columns and the normal distribution of its rows."""

    beta: Array  # (n_columns,)
    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns)

    @classmethod
    def initial(cls, x: Array) -> "PartyParameters":
        """Return the input of Algorithm 1: no coefficients, moments of the rows held."""
        mean = x.mean(axis=0)
        return cls(np.zeros(x.shape[1]), mean, (x - mean).T @ (x - mean) / len(x))

    @property
    def loading(self) -> Array:
        """Return ``Sigma_k beta_k``, shape (n_columns,)."""
        return self.covariance @ self.beta

    def m_step(
        self,
        x: Array,
        n_samples: int,
        r: Array,
        missing: tuple[float, float],
        sigma2: float,
        learning_rate: float,
    ) -> "PartyParameters":
        """Take a gradient step for beta (Eqs. 7, 8), the rest by Eq. (6).

        Shapes: x (n_held, n_columns); r (n_held,): ``r_i`` of the rows held; missing: sums of
        ``r_i`` and of ``r_i^2 - 1 / d_i`` over the samples that the party lacks.
        """
        rest, surplus = missing
        lacking = n_samples - len(x)
        gradient = x.T @ r + self.mean * rest + self.loading * surplus
        beta = self.beta + learning_rate * sigma2 * gradient / n_samples
        mean = (x.sum(axis=0) + lacking * self.mean + self.loading * rest) / n_samples
        centred = x - self.mean  # the paper updates the covariance around the old mean
        covariance = centred.T @ centred + lacking * self.covariance
        covariance += surplus * np.outer(self.loading, self.loading)
        return PartyParameters(beta, mean, covariance / n_samples)


@dataclass(frozen=True)
class Missing:
    """The patterns of missing parties among the samples."""

    group: Indices  # (n_samples,): pattern of each sample
    absent: Flags  # (n_groups, n_parties): the parties that lack the samples of a pattern

    @classmethod
    def of(cls, mask: Flags) -> "Missing":
        """Find the patterns of a mask of shape (n_samples, n_parties), True = missing."""
        absent, group = np.unique(mask, axis=0, return_inverse=True)
        return cls(group.reshape(-1).astype(np.int64), absent)

    def total(self, values: Array | None = None) -> Array:
        """Sum values of shape (n_samples,) within each pattern, or count samples; (n_groups,)."""
        return np.asarray(np.bincount(self.group, values, minlength=len(self.absent)).astype(float))


@dataclass(frozen=True)
class EStep:
    """What the server knows in an iteration: it takes the E-step, and the M-step of its own."""

    missing: Missing
    gap: Array  # (n_samples,): label less intercept and summed fits
    explained: Array  # (n_parties,): ``beta_k' Sigma_k beta_k``, the paper's ``v_1^k``
    intercept: float
    sigma2: float

    @property
    def variance(self) -> Array:
        """Return ``d`` of each pattern, shape (n_groups,)."""
        return self.sigma2 + self.missing.absent @ self.explained

    @property
    def r(self) -> Array:
        """Return ``r_i`` of each sample, shape (n_samples,)."""
        return self.gap / self.variance[self.missing.group]

    def sums_of_missing(self) -> Array:
        """Return for each party the sums that `PartyParameters.m_step` takes; (n_parties, 2)."""
        r, d = self.r, self.variance
        surplus = self.missing.total(r**2) - self.missing.total() / d
        return np.asarray(self.missing.absent.T @ np.column_stack([self.missing.total(r), surplus]))

    @property
    def loss(self) -> float:
        """Return the mean of ``e_i^2 + v_4i``: the next noise variance (Eq. 6), and the loss."""
        spread = self.missing.absent @ self.explained * self.sigma2 / self.variance
        total = self.sigma2**2 * self.r @ self.r + self.missing.total() @ spread
        return float(total) / len(self.gap)


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
