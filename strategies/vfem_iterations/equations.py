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
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices


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
