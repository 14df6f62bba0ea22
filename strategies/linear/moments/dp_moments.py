"""Noise on opened moments, as the server knows it, and what it does to a fit.

Of the matrix ``M = Z'Z`` with rows ``z = (1, x, y)`` the server has ``M + E``, E symmetric, normal,
with variances that are public. Coefficients then are those of ridge regression with the least ridge
that outweighs E: AdaSSP (Wang, 2018, "Revisiting differentially private linear regression",
Algorithm 2). Two things differ, both for the better: all sums are one release of a Gaussian
mechanism with the noise of Balle and Wang (2018), not three that share epsilon; and the smallest
eigenvalue is bounded from the noisy matrix, which costs no epsilon, since no node has the exact
one. The bound on the norm of E is the quantile of its own distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.privacy import MomentStatement, noise_is_seeded
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.moments.dp_opening import FitBudget, GroupNoise
from strategies.linear.moments.linear import LinearFit
from strategies.linear.moments.patterns import Pattern

_DRAWS = 400

FAILURE = 0.05
"""With this probability the noise is larger than its bound (AdaSSP's rho)."""

_LEAST = 0.1  # of the bound: what the smallest eigenvalue has at least, with the ridge


def moved_by(noise: Sequence[GroupNoise], origin: Array) -> list[GroupNoise]:
    """Return the noise on columns and label less an origin, shape (n_columns + 1,)."""
    by = np.eye(len(origin) + 1)
    by[1:, 0] = -origin
    return [replace(part, turn=by @ part.turn) for part in noise]


def norm_bound(noise: Sequence[GroupNoise], kept: Flags) -> float:
    """Return what the spectral norm of the noise exceeds with a probability of `FAILURE`.

    By draws, the same ones each time: only the variances enter, which are public. Inequalities for
    random matrices would give two to three times as much, and a ridge that much larger.

    Shapes: kept (n_columns + 2,): which rows and columns.
    """
    rng = np.random.default_rng(0)
    parts = [replace(part, turn=part.turn[kept]) for part in noise]
    drawn = np.sum([part.draw(_DRAWS, rng) for part in parts], axis=0)
    norms = np.abs(np.linalg.eigvalsh(drawn)).max(axis=1)
    return float(np.quantile(norms, 1.0 - FAILURE))


def ridge_of(matrix: Array, bound: float) -> float:
    """Return the ridge of AdaSSP.

    Shapes: matrix (n, n): products of columns, with noise.
    """
    if not bound:
        return 0.0
    least = float(np.linalg.eigvalsh(matrix)[0])
    return max(bound - max(least - bound, 0.0), _LEAST * bound - least, 0.0)


@dataclass(frozen=True)
class NoisyFit:
    """Least squares from noisy moments."""

    fit: LinearFit  # With ``added``, the covariance that the noise gives to the estimates
    ridge: float
    rows: Pattern  # Moments with the ridge on the columns' squares; positive definite
    hidden: bool  # Whether noise hides the variance of the residuals: what is left is not above 0


def noisy_least_squares(rows: Pattern, noise: Sequence[GroupNoise], intercept: bool) -> NoisyFit:
    """Solve the normal equations with the ridge that the noise needs."""
    n, d = rows.n_rows, len(rows.sums) - 1
    told = np.diag(rows.products)[:-1] != 0.0  # of others there are neither sums nor noise
    kept = np.concatenate([[intercept], told, [False]]).astype(bool)
    moments = np.block([[np.array([[n]]), rows.sums], [rows.sums[:, None], rows.products]])
    ridge = ridge_of(moments[np.ix_(kept, kept)], norm_bound(noise, kept))
    penalty = np.diag(np.concatenate([[0.0], np.full(d, ridge)])[kept[:-1]])
    inverse = np.zeros((d + 1, d + 1))
    at = np.ix_(kept[:-1], kept[:-1])
    inverse[at] = np.linalg.inv(moments[np.ix_(kept, kept)] + penalty)
    theta = inverse @ moments[:-1, -1]
    vector = np.append(-theta, 1.0)
    score = np.sum([part.of_products(vector) for part in noise], axis=0)[:-1, :-1]
    mean = rows.sums / n if intercept else np.zeros(d + 1)
    centred = rows.products - n * np.outer(mean, mean)
    gram, beta = _positive(centred[:-1, :-1]), theta[1:]
    rss, tss = float(vector @ moments @ vector), float(centred[-1, -1])
    hidden = not rss > 0.0
    if hidden:  # something above 0: a thousandth of the labels' half range
        rss = 1e-6 * n
    fit = LinearFit(
        n_rows=n,
        level=float(theta[0] + mean[:-1] @ beta) * intercept,
        means=rows.sums[:-1] / n,
        beta=beta,
        dependent=~told,
        covariance=gram / n,
        inverse=inverse[1:, 1:] @ gram @ inverse[1:, 1:],
        rss=rss,
        tss=max(tss, rss),
        has_intercept=intercept,
        added=inverse @ score @ inverse,
    )
    return NoisyFit(fit, ridge, _whole(rows, ridge, beta, rss, intercept), hidden)


def _whole(rows: Pattern, ridge: float, beta: Array, rss: float, intercept: bool) -> Pattern:
    """Return moments that some data could have, with the same fit and residuals."""
    products = rows.products.copy()
    d = len(beta)
    products[np.arange(d), np.arange(d)] += ridge
    mean = rows.sums / rows.n_rows if intercept else np.zeros(d + 1)
    gram = products[:-1, :-1] - rows.n_rows * np.outer(mean[:-1], mean[:-1])
    products[-1, -1] = float(beta @ gram @ beta) + rss + rows.n_rows * mean[-1] ** 2
    return replace(rows, products=products)


def _positive(matrix: Array) -> Array:
    """Return the nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


ALL = "rows, over all parties"


def state_privacy(
    result: Result, budget: FitBudget, opened: OpenedMoments, found: NoisyFit
) -> None:
    """Put statement, spending and notes into the result."""
    warnings = []
    if found.hidden:
        warnings.append(
            "The noise hides the variance of the residuals: standard errors and R2 mean nothing. "
            "Take more rows, fewer columns, narrower bounds or a larger epsilon."
        )
    n = found.fit.n_rows
    if budget.delta * n > 0.1:
        warnings.append(
            f"Delta times the {n:,.0f} rows is {budget.delta * n:.2g}: that many rows may be told "
            "of without any protection. Delta should be well below one over the rows."
        )
    if noise_is_seeded():
        warnings.append("The noise was drawn from a known seed: nothing of this run is private.")
    deviations = [
        float(np.sqrt(part.variance[1:-1, 1:-1].max(initial=0.0))) for part in opened.noise or []
    ]
    result.privacy = MomentStatement(
        epsilon=budget.epsilon, delta=budget.delta, row_norm=budget.row_norm, n_rows=int(n),
        parties=[name for name, own in opened.parties.items() if own.stop > own.start],
        noise=max(deviations, default=0.0), ridge=found.ridge, warnings=warnings,
    )  # fmt: skip
    result.ledger.spend(ALL, budget.epsilon, f"noisy moments (delta {budget.delta:g})")
    result.notes += result.privacy.sentences
    if opened.problem.has_free:
        result.notes.append(
            "samples without a label are not predicted: a prediction tells of its sample, which "
            "epsilon would not cover. Predict them in a run of its own, if the parties agree"
        )
