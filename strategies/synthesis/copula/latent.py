"""The server's numerics: from everybody's perturbed ranks to a correlation matrix and new latents.

Tang, Feng, Li and Wang, Algorithm 1 (lines 6 to 9) and Algorithm 2 (line 21).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from flwr_vertical.errors import DataError
from strategies.synthesis.copula.bridge import (
    latent_correlations,
    rank_coefficients,
    score_coefficients,
)
from strategies.synthesis.copula.correlation import (
    RankCorrelations,
    from_spearman,
    least_eigenvalue,
    nearest_correlation,
    rank_correlations,
)
from strategies.synthesis.copula.ranks import Flip
from strategies.synthesis.copula.scores import Scores, draw_scores

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """All columns as the server knows them.

    Parameters
    ----------
    ranks : numpy.ndarray of shape (n_samples, p), int32
        Perturbed ranks, 0 where a sample lacks the column. The labels come first, if there are any.
    flips : sequence of Flip
        One for each column.
    cuts : sequence of (array of shape (n_levels - 1,) or (n_atoms, 2), or None)
        Noisy shares of columns of levels; of numeric columns, where point masses begin and end.
    owners : sequence of str
        Whose column it is.
    """

    ranks: npt.NDArray[np.int32]
    flips: Sequence[Flip]
    cuts: Sequence[Array | None]
    owners: Sequence[str]

    @property
    def n(self) -> npt.NDArray[np.int64]:
        """How many samples have each column, array of shape (p,)."""
        return np.asarray(np.count_nonzero(self.ranks, axis=0), dtype=np.int64)

    @property
    def noise(self) -> Array:
        """Variance of the noise of each column's debiased ranks, array of shape (p,)."""
        return np.array([f.noise_variance(n) for f, n in zip(self.flips, self.n, strict=True)])


def correlate(observed: Observed) -> RankCorrelations:
    """Return the rank correlations of all pairs of columns."""
    scores = np.full(observed.ranks.shape, np.nan)
    for j, (flip, n) in enumerate(zip(observed.flips, observed.n, strict=True)):
        seen = observed.ranks[:, j] > 0
        scores[seen, j] = flip.debias(observed.ranks[seen, j], int(n))
    return rank_correlations(scores, observed.noise)


def check_joint(correlations: RankCorrelations, owners: Sequence[str], least: int) -> int:
    """Return the smallest number of rows that two columns share, or raise if it is too small."""
    joint = correlations.n_joint
    j, k = divmod(int(joint.argmin()), len(joint))
    if joint[j, k] < least:
        pair = f"{owners[j]!r} and {owners[k]!r}" if j != k else f"{owners[j]!r} alone"
        raise DataError(
            f"only {joint[j, k]} rows have the columns of {pair} jointly observed, but min_joint = "
            f"{least} are asked for to estimate a correlation; align other rows, leave a party "
            "out, or set min_joint lower"
        )
    return int(joint[j, k])


def latent_matrix(correlations: RankCorrelations, cuts: Sequence[Array | None]) -> Array:
    """Return the correlation matrix of the latents, array of shape (p, p)."""
    coefficients = np.array([rank_coefficients(c) for c in cuts])
    least = least_eigenvalue(len(coefficients), float(correlations.n_joint.min()))
    return nearest_correlation(latent_correlations(correlations.debiased, coefficients), least)


def score_matrix(correlations: RankCorrelations) -> Array:
    """Return the correlation matrix of the perturbed ranks' normal scores, shape (p, p).

    Nearer to the identity than that of the latents: noise, and levels' random order, are in it.
    """
    return nearest_correlation(from_spearman(correlations.raw))


def latent_from_scores(matrix: Array, observed: Observed, cuts: Sequence[Array | None]) -> Array:
    """Return the latents' correlation matrix given that of normal scores, shape (p, p).

    Parameters
    ----------
    matrix : numpy.ndarray of shape (p, p)
        Correlations of normal scores of perturbed ranks.
    observed : Observed
        Tells how noisy the ranks are.
    cuts : sequence of (array of shape (n_levels - 1,) or (n_atoms, 2), or None)
        Shares of levels and of point masses, corrected for what is missing.
    """
    errors = (np.sqrt(observed.noise) / observed.n).tolist()
    coefficients = np.array([score_coefficients(c, e) for e, c in zip(errors, cuts, strict=True)])
    least = least_eigenvalue(len(matrix), float(observed.n.min()))
    return nearest_correlation(latent_correlations(matrix, coefficients), least)


def draw_latents(omega: Array, rows: int, rng: np.random.Generator) -> Array:
    """Draw rows of the normal distribution with a correlation matrix, array of shape (rows, p)."""
    return rng.standard_normal((rows, len(omega))) @ np.linalg.cholesky(omega).T


def spread_evenly(latents: Array, rng: np.random.Generator) -> Array:
    """Return latents as probabilities of their margin, one in each of m equal parts of [0, 1].

    Drawn independently, m rows would have margins that differ from those that they are drawn from
    by some 0.9 / sqrt(m) (Kolmogorov and Smirnov's distance). Their order is kept, so that rank
    correlations are, too.
    """
    rows = len(latents)
    parts = latents.argsort(axis=0).argsort(axis=0)
    levels: Array = (parts + rng.random(latents.shape)) / rows
    return levels


def probabilities(latents: Array) -> Array:
    """Return latents as probabilities of their margin."""
    levels: Array = ndtr(latents)
    return levels


def synthetic_levels(
    scores: Scores,
    matrix: Array,
    omega: Array,
    rows: int,
    rng: np.random.Generator,
    rearrange: bool,
) -> Array:
    """Make synthetic rows as shares of each column's *observed* values.

    Parameters
    ----------
    scores : Scores
        Carry the margins' correction H.
    matrix, omega : numpy.ndarray of shape (p, p)
        Correlation matrices of scores and of latents.
    rows : int
        How many.
    rng : numpy.random.Generator
        Simulation randomness.
    rearrange : bool
        Follow the ranks of real rows; in a random order.

    Returns
    -------
    numpy.ndarray of shape (rows, p)
    """
    if rearrange:
        copies = -(-rows // len(scores.z))
        drawn = np.vstack([draw_scores(scores, matrix, rng) for _ in range(copies)])
        levels = probabilities(drawn[rng.permutation(len(drawn))[:rows]])
    else:
        levels = spread_evenly(draw_latents(omega, rows, rng), rng)
    for j in range(levels.shape[1]):
        levels[:, j] = scores.observed_share(j, levels[:, j])
    return levels
