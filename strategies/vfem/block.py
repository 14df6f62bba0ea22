"""What one party computes: its share of the fit, and its M-step.

Notation of Tang, Wang, Feng and Li ("Enterprise Profit Prediction Using Multiple Data Sources with
Missing Values through Vertical Federated Learning"), Section 3: party k holds rows ``x_ik``, normal
with mean ``mu_k`` and covariance ``Sigma_k``; a row is missing as a whole. With
``d_i = sigma^2 + sum of beta_k' Sigma_k beta_k over the parties missing at i`` and
``r_i = (y_i - fit_i) / d_i``, where the fit of a missing row is ``mu_k' beta_k``, everything in
Eqs. (4) to (8) is local to a party:

* conditional mean of a missing row: ``mu_k + Sigma_k beta_k r_i``;
* its conditional covariance: ``Sigma_k - Sigma_k beta_k beta_k' Sigma_k / d_i``;
* residual of the completed row: ``e_i = sigma^2 r_i``;
* ``alpha_i[k] = Sigma_k beta_k sigma^2 / d_i``.

Missing rows enter through three sums only, so a party needs ``r_i`` for the rows it holds.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array
from strategies.vfem.parameters import BlockParameters


@dataclass(frozen=True)
class Block:
    """A party's observed rows and what is computed from them once."""

    x: Array  # (n_observed, n_columns): the rows that the party holds, of samples that take part
    n_samples: int  # All samples that take part, whether the party holds them or not
    mean: Array  # (n_columns,): mean of `x`
    # (n_columns, n_columns): covariance of `x` with divisor n_observed, without ridge
    covariance: Array
    # Added to the diagonal wherever a matrix of columns is inverted; 0 unless columns are
    # constant or collinear
    ridge: float = 0.0

    @classmethod
    def of(cls, x: Array, n_samples: int, ridge: float = 0.0) -> "Block":
        """Compute the moments of the rows."""
        mean = x.mean(axis=0)
        centred = x - mean
        return cls(x, n_samples, mean, centred.T @ centred / len(x), ridge)

    @property
    def n_observed(self) -> int:
        """Number of rows held."""
        return len(self.x)

    @property
    def n_missing(self) -> int:
        """Number of samples without a row here."""
        return self.n_samples - self.n_observed

    def start(self) -> BlockParameters:
        """Return the initial values of Algorithm 1: no coefficients, moments of the rows."""
        p = self.x.shape[1]
        return BlockParameters(np.zeros(p), self.mean, self.covariance + self.ridge * np.eye(p))

    def margin_log_likelihood(self, theta: BlockParameters) -> float:
        """Log likelihood of the observed rows under their normal distribution, without 2 pi."""
        shift = self.mean - theta.mean
        second = self.covariance + np.outer(shift, shift)
        second[np.diag_indices_from(second)] += self.ridge
        _, log_det = np.linalg.slogdet(theta.covariance)
        trace = np.trace(np.linalg.solve(theta.covariance, second))
        return float(-0.5 * self.n_observed * (log_det + trace))


@dataclass(frozen=True)
class MissingSums:
    """What the samples that a party lacks contribute to its M-step."""

    # r, r_squared, weight, weight_squared: Sums of ``r_i``, ``r_i^2``, ``1 / d_i`` and ``1 /
    # d_i^2`` over the samples that the party lacks
    r: float
    r_squared: float
    weight: float
    weight_squared: float


def gradient_step(
    block: Block,
    theta: BlockParameters,
    r: Array,
    missing: MissingSums,
    sigma2: float,
    learning_rate: float,
) -> BlockParameters:
    """Take the paper's M-step: a gradient step for beta (Eqs. 7, 8), the rest by Eq. (6).

    Shapes: r (n_observed,): ``r_i`` of the rows held.
    """
    n, loading = block.n_samples, theta.loading
    drawn_in = missing.r_squared - missing.weight
    gradient = block.x.T @ r + theta.mean * missing.r + loading * drawn_in
    beta = theta.beta + learning_rate * sigma2 * gradient / n
    mean = (block.n_observed * block.mean + block.n_missing * theta.mean + loading * missing.r) / n
    shift = block.mean - theta.mean  # the paper updates the covariance around the old mean
    observed = block.n_observed * (block.covariance + np.outer(shift, shift))
    observed[np.diag_indices_from(observed)] += block.n_observed * block.ridge
    covariance = (
        observed + block.n_missing * theta.covariance + drawn_in * np.outer(loading, loading)
    ) / n
    return BlockParameters(beta, mean, covariance)


@dataclass(frozen=True)
class Coupling:
    """What the server tells a party of the other parties' share in a scoring step."""

    # Sum of ``r_i`` over the samples the party lacks, less what the other parties' and the
    # intercept's steps will take of it
    mean_pull: float
    # The same for the sum of ``r_i^2 - 1 / d_i`` and the step of the noise variance
    variance_pull: float


@dataclass(frozen=True)
class Movable:
    """How a party's mean fit and explained variance respond; the server needs it to couple steps.

    With ``T`` for the change of a quantity and ``z`` for what is left of the pull after all steps,
    ``T(mean_fit) = mean_gap + explained / n_observed * z`` and
    ``T(explained) = variance_gap + variance_gain * z``.
    """

    mean_gap: float  # See above
    variance_gap: float  # See above
    variance_gain: float  # See above


def scoring_step(
    block: Block,
    theta: BlockParameters,
    r: Array,
    weights: Array,
    missing: MissingSums,
    coupling: Coupling,
    centred: bool = True,
) -> tuple[BlockParameters, Movable]:
    """Take a Fisher scoring step on the observed-data likelihood, with the party's own Gram matrix.

    Where the EM step divides by the information of complete data, and crawls where little is
    observed, this one divides by the information that is there: ``sum x x' / d_i`` over the rows
    held, around the party's mean. Products with other parties' columns have expectation zero
    under the model and are left out; the few numbers through which parties do act on each other
    (the mean and the variance of their fits where they lack samples) come in by `Coupling`.

    Shapes: weights (n_observed,): ``1 / d_i`` of the rows held.
    """
    n, loading, explained = block.n_observed, theta.loading, theta.explained
    gram, score = _gram_and_score(block, theta, r, weights, missing, centred)
    by_score, by_loading = _solve(gram, np.column_stack([score, loading])).T

    mean_gap = float(theta.beta @ (block.mean - theta.mean))
    mean_shift = (mean_gap + explained / n * coupling.mean_pull) / (
        1.0 + explained / n * missing.weight
    )
    left = coupling.mean_pull - missing.weight * mean_shift
    mean = block.mean + loading / n * left

    shift = block.mean - theta.mean
    target = block.covariance + np.outer(shift, shift)
    target[np.diag_indices_from(target)] += block.ridge
    gap = target - theta.covariance
    variance_gap = float(2.0 * loading @ by_score + theta.beta @ gap @ theta.beta)
    variance_gain = float(2.0 * loading @ by_loading + explained**2 / n)
    change = (variance_gap + variance_gain * coupling.variance_pull) / (
        1.0 + variance_gain * missing.weight_squared
    )
    left = coupling.variance_pull - missing.weight_squared * change
    beta = theta.beta + by_score + left * by_loading
    step = gap + left / n * np.outer(loading, loading)
    covariance = theta.covariance + _largest_valid(theta.covariance, step) * step
    return (
        BlockParameters(beta, mean, covariance),
        Movable(mean_gap, variance_gap, variance_gain),
    )


def weighted_gram(block: Block, theta: BlockParameters, weights: Array) -> Array:
    """Sum of ``(x_i - mu) (x_i - mu)' / d_i`` over the rows held, with ridge: shape (p, p)."""
    centred = block.x - theta.mean
    gram = (centred * weights[:, None]).T @ centred
    gram[np.diag_indices_from(gram)] += block.ridge * weights.sum()
    return gram


def _gram_and_score(
    block: Block,
    theta: BlockParameters,
    r: Array,
    weights: Array,
    missing: MissingSums,
    centred: bool,
) -> tuple[Array, Array]:
    """Information about beta and its score, without the part that goes through the variance."""
    gram = weighted_gram(block, theta, weights)
    score = block.x.T @ r - theta.mean * r.sum()
    if not centred:
        gram += (weights.sum() + missing.weight) * np.outer(theta.mean, theta.mean)
        score = score + theta.mean * (r.sum() + missing.r)
    return gram, score - block.ridge * weights.sum() * theta.beta


def _solve(gram: Array, right: Array) -> Array:
    try:
        return np.asarray(np.linalg.solve(gram, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(gram, right, rcond=None)[0], dtype=np.float64)


def _largest_valid(covariance: Array, step: Array) -> float:
    """Largest of 1, 1/2, 1/4, ... that keeps a covariance well inside the positive definite."""
    factor = np.linalg.cholesky(covariance)
    relative = np.linalg.solve(factor, np.linalg.solve(factor, step).T)
    least = float(np.linalg.eigvalsh((relative + relative.T) / 2)[0])
    share = 1.0
    while 1.0 + share * least < 0.05:
        share /= 2
    return share
