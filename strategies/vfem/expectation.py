"""What the server computes: the E-step, its own two parameters, and the coupling of steps.

The observed-data likelihood of Tang et al., Eq. (3), is a product of one normal density for each
label and one for each row held: ``y_i ~ N(b0 + fit_i, d_i)`` with
``d_i = sigma^2 + sum of beta_k' Sigma_k beta_k over the parties missing at i``. So ``d`` takes one
value for each missingness pattern, and sums over samples are sums over patterns.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from strategies.vfem.block import Coupling, MissingSums, Movable


@dataclass(frozen=True)
class Patterns:
    """The missingness patterns of the samples that take part."""

    group: npt.NDArray[np.int64]  # (n_samples,): pattern of each sample
    # (n_groups, n_parties): which parties lack the samples of a pattern
    missing: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, mask: npt.NDArray[np.bool_]) -> "Patterns":
        """Find the patterns of a mask of shape (n_samples, n_parties), True = missing."""
        missing, group = np.unique(mask, axis=0, return_inverse=True)
        return cls(group.reshape(-1).astype(np.int64), missing)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.group)

    @property
    def counts(self) -> Array:
        """Samples of each pattern, shape (n_groups,)."""
        return self.total(None)

    @property
    def n_observed(self) -> Array:
        """Rows that each party holds, shape (n_parties,)."""
        held: Array = self.counts @ ~self.missing
        return held

    def total(self, values: Array | None) -> Array:
        """Sum values of shape (n_samples,) within each pattern, shape (n_groups,)."""
        sums: Array = np.bincount(self.group, values, minlength=len(self.missing)).astype(float)
        return sums


@dataclass(frozen=True)
class NoisePrior:
    """Prior of the noise variance: as if so many more residuals were known."""

    weight: float = 0.0  # How many residuals; 0 for maximum likelihood
    level: float = 0.0  # Their mean square

    def log_density(self, sigma2: float) -> float:
        """Logarithm of the prior, without constants."""
        return -0.5 * self.weight * (float(np.log(sigma2)) + self.level / sigma2)

    def surplus(self, sigma2: float) -> float:
        """Twice the derivative of the logarithm by the variance."""
        return self.weight * (self.level / sigma2**2 - 1.0 / sigma2)

    def information(self, sigma2: float) -> float:
        """Twice the information about the variance."""
        return self.weight / sigma2**2


_NO_PRIOR = NoisePrior()


@dataclass(frozen=True)
class EStep:
    """The E-step at some parameters."""

    patterns: Patterns  # Of the samples
    gap: Array  # (n_samples,): label less intercept and fit
    explained: Array  # (n_parties,): variance of each party's fit
    intercept: float  # The server's own parameters
    sigma2: float  # The server's own parameters
    margin: float  # Log likelihood of the rows held, over all parties
    prior: NoisePrior = _NO_PRIOR  # Of the noise variance

    @property
    def variance(self) -> Array:
        """``d`` of each pattern, shape (n_groups,)."""
        return self.sigma2 + self.patterns.missing @ self.explained

    @property
    def r(self) -> Array:
        """``gap / d`` of each sample, shape (n_samples,)."""
        return self.gap / self.variance[self.patterns.group]

    @property
    def log_likelihood(self) -> float:
        """Observed-data log likelihood, without the constants of 2 pi."""
        squares = self.patterns.total(self.gap**2)
        return self.margin + _label_likelihood(self.patterns.counts, squares, self.variance)

    @property
    def objective(self) -> float:
        """What the iterations maximise: log likelihood and prior."""
        return self.log_likelihood + self.prior.log_density(self.sigma2)

    def missing_sums(self) -> list[MissingSums]:
        """For each party, what the samples contribute that it lacks."""
        absent = self.patterns.missing.T.astype(float)
        counts, r, d = self.patterns.counts, self.r, self.variance
        return [
            MissingSums(float(a), float(b), float(c), float(e))
            for a, b, c, e in zip(
                absent @ self.patterns.total(r),
                absent @ self.patterns.total(r**2),
                absent @ (counts / d),
                absent @ (counts / d**2),
                strict=True,
            )
        ]

    def em_sigma2(self) -> float:
        """Noise variance by Eq. (6): mean of ``e_i^2 + s_i sigma^2 / d_i``, ``e = sigma^2 r``."""
        s = self.patterns.missing @ self.explained
        residuals = self.patterns.total((self.sigma2 * self.r) ** 2)
        spread = self.patterns.counts * s * self.sigma2 / self.variance
        total = float((residuals + spread).sum()) + self.prior.weight * self.prior.level
        return total / (self.patterns.n_samples + self.prior.weight)


def profile(
    patterns: Patterns,
    gap: Array,
    explained: Array,
    margin: float,
    start: float,
    floor: float,
    intercept: bool,
    prior: NoisePrior = _NO_PRIOR,
) -> EStep:
    """Choose intercept and noise variance that are best for given fits; no round is needed.

    Shapes: gap (n_samples,): label less fit, without intercept; explained (n_parties,): variance
    of each party's fit.
    """
    counts, total, squares = patterns.counts, patterns.total(gap), patterns.total(gap**2)
    spread = patterns.missing @ explained

    def best_intercept(sigma2: float) -> float:
        d = spread + sigma2
        return float((total / d).sum() / (counts / d).sum()) if intercept else 0.0

    def likelihood(sigma2: float) -> float:
        b = best_intercept(sigma2)
        left = squares - 2 * b * total + counts * b * b
        return _label_likelihood(counts, left, spread + sigma2) + prior.log_density(sigma2)

    sigma2 = max(start, floor)
    best = likelihood(sigma2)
    for _ in range(100):
        d, b = spread + sigma2, best_intercept(sigma2)
        score = ((squares - 2 * b * total + counts * b * b) / d**2 - counts / d).sum()
        score += prior.surplus(sigma2)
        information = (counts / d**2).sum() + prior.information(sigma2)
        # In the logarithm, so that it stays positive; Fisher scoring, halved until it helps.
        step = float(np.clip(score / information / sigma2, -2.0, 2.0))
        while abs(step) > 1e-13:
            trial = max(sigma2 * float(np.exp(step)), floor)
            value = likelihood(trial)
            if value >= best:
                sigma2, best = trial, value
                break
            step /= 2
        if abs(step) <= 1e-13 or sigma2 == floor:
            break
    b = best_intercept(sigma2)
    return EStep(patterns, gap - b, explained, b, sigma2, margin, prior)


def couplings(
    estep: EStep, movable: list[Movable], intercept: bool, sigma2_moves: bool = True
) -> list[Coupling]:
    """Foresee how all parties' steps act on each other, and tell each party its share.

    Where several parties lack the same samples, each would take the whole of a common surplus of
    variance for itself. The server solves for all steps at once, with one equation for each party
    and one for its own parameter: a system of n_parties + 1 unknowns for the mean (with the
    intercept) and one for the variance (with sigma^2).
    """
    patterns, d = estep.patterns, estep.variance
    design = np.column_stack([np.ones(len(d)), patterns.missing])
    r = estep.r
    pull = design.T @ patterns.total(r)
    surplus = design.T @ (patterns.total(r**2) - patterns.counts / d)
    weight = design.T @ (design * (patterns.counts / d)[:, None])
    weight_squared = design.T @ (design * (patterns.counts / d**2)[:, None])
    surplus[0] += estep.prior.surplus(estep.sigma2)
    weight_squared[0, 0] += estep.prior.information(estep.sigma2)
    gain = estep.explained / np.maximum(patterns.n_observed, 1.0)
    mean = _others(weight, pull, np.array([m.mean_gap for m in movable]), gain, intercept)
    variance = _others(
        weight_squared,
        surplus,
        np.array([m.variance_gap for m in movable]),
        np.array([m.variance_gain for m in movable]),
        sigma2_moves,
    )
    return [Coupling(float(a), float(b)) for a, b in zip(mean, variance, strict=True)]


def _others(weight: Array, pull: Array, gap: Array, gain: Array, own: bool) -> Array:
    """Pull on each party less what the others' steps will take of it, shape (n_parties,).

    Steps solve ``t_0: W_0. t = u_0`` (if the server's own parameter is free, else ``t_0 = 0``) and
    ``t_k = gap_k + gain_k (u_k - W_k. t)``.
    """
    system = weight.copy()
    system[1:] *= gain[:, None]
    system[1:, 1:] += np.eye(len(gap))
    right = np.concatenate([pull[:1], gap + gain * pull[1:]])
    if not own:
        system[0], right[0] = 0.0, 0.0
        system[0, 0] = 1.0
    steps = np.linalg.solve(system, right)
    left: Array = pull[1:] - weight[1:] @ steps + np.diag(weight)[1:] * steps[1:]
    return left


def _label_likelihood(counts: Array, squares: Array, variance: Array) -> float:
    """Log likelihood of the labels from sums over each pattern, without 2 pi."""
    return float(-0.5 * (counts * np.log(variance) + squares / variance).sum())
