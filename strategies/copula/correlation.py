"""Correlations from perturbed ranks, pairwise over what both columns have, and made a matrix.

Tang, Feng, Li and Wang, sections 2.2 and 3.1: debiasing makes products of ranks unbiased, since the
noise of different columns is independent. It also inflates each column's own variance; but that
of the true ranks is known, (n^2 - 1) / 12, so the noisy one is never used.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Integers

_FLOOR = 1e-4  # least eigenvalue of a correlation matrix: far below what ranks can tell
_MOST = 0.1  # and the most that `least_eigenvalue` makes of it
_SHARE = 0.5
_LEAST_VARIANCE = 0.25


@dataclass(frozen=True)
class RankCorrelations:
    """Rank correlations between all columns."""

    # (p, p): estimates for the true ranks; 1 on the diagonal, not yet a correlation matrix
    debiased: Array
    raw: Array  # (p, p): those of the perturbed ranks themselves, nearer to zero
    n_joint: Integers  # (p, p): how many rows have both columns


def rank_correlations(
    scores: Array, noise: Array, indicators: npt.NDArray[np.bool_] | None = None
) -> RankCorrelations:
    """Estimate Spearman's correlations from debiased ranks.

    Over all n rows of a column its rank variance is known. Over the rows that another column has,
    too, ranks are those among all n, their mean over these rows is taken off, and the variance is
    the noisy one less the known variance of the noise.

    Shapes: scores (n_samples, p): debiased ranks less their mean (`Flip.debias`), NaN where a row
    lacks the column; noise (p,): variance of their noise (`Flip.noise_variance`); indicators (p,):
    which columns are ranks of indicators.
    """
    seen = ~np.isnan(scores)
    mask, filled = seen.astype(np.float64), np.where(seen, scores, 0.0)
    joint = mask.T @ mask
    n = np.diag(joint)
    safe = np.maximum(joint, 2.0)
    sums = filled.T @ mask  # [j, l]: of column j over the rows that l has
    squares = (filled**2).T @ mask
    covariance = (filled.T @ filled - sums * sums.T / safe) / (safe - 1)
    noisy = (squares - sums**2 / safe) / (safe - 1)
    known = (n * (n + 1) / 12)[:, None]  # with the divisor n - 1
    whole = joint == n[:, None]
    if indicators is not None:
        whole |= indicators[:, None]
    variance = np.where(whole, known, noisy - noise[:, None])
    variance = np.maximum(variance, _LEAST_VARIANCE * known)
    noisy = np.maximum(noisy, _LEAST_VARIANCE * known)
    debiased = covariance / np.sqrt(variance * variance.T)
    raw = covariance / np.sqrt(noisy * noisy.T)
    for matrix in (debiased, raw):
        np.clip(matrix, -1.0, 1.0, out=matrix)
        np.fill_diagonal(matrix, 1.0)
    return RankCorrelations(debiased, raw, joint.astype(np.int64))


def from_spearman(rho: npt.ArrayLike) -> Array:
    """Return the normal correlations that give Spearman's correlations: ``2 sin(pi rho / 6)``."""
    return 2.0 * np.sin(np.pi * np.asarray(rho, dtype=np.float64) / 6.0)


def least_eigenvalue(p: int, n: float) -> float:
    """Return what the eigenvalues of p columns' correlations are held above, given n rows.

    Sampling moves eigenvalues by about ``2 sqrt(p / n)``, noise by more; projection then leaves
    many at the least value allowed. Where that is nearly 0, synthetic columns are nearly
    collinear, which real ones need not be, and whoever fits a regression to them gets huge
    coefficients. Half of ``p / n`` is far below what n rows can tell from 0.
    """
    return min(max(_SHARE * p / n, _FLOOR), _MOST)


def nearest_correlation(
    matrix: Array,
    least: float = _FLOOR,
    max_iter: int = 200,
    tol: float = 1e-7,
    fixed: npt.NDArray[np.bool_] | None = None,
) -> Array:
    """Return the nearest correlation matrix in Frobenius norm, positive definite.

    Higham (2002), "Computing the nearest correlation matrix", Algorithm 3.3: alternating
    projections with Dykstra's correction; then a step towards the identity where an eigenvalue is
    still too small.

    Shapes: matrix (p, p): symmetric; fixed (p, p): entries that stay, where these are of blocks
    along the diagonal that are larger than `least` themselves; by default the diagonal stays 1.
    """
    found = (matrix + matrix.T) / 2
    if fixed is None:
        fixed = np.eye(len(matrix), dtype=np.bool_)
        np.fill_diagonal(found, 1.0)
    stays = np.where(fixed, found, 0.0)
    if np.linalg.eigvalsh(found)[0] < least:
        correction = np.zeros_like(found)
        for _ in range(max_iter):
            shifted = found - correction
            values, vectors = np.linalg.eigh(shifted)
            projected = (vectors * np.maximum(values, least)) @ vectors.T
            correction = projected - shifted
            before, found = found, np.where(fixed, stays, projected)
            if np.abs(found - before).max() < tol:
                break
    smallest = np.linalg.eigvalsh(found)[0]
    if smallest < least:
        most = np.linalg.eigvalsh(stays)[0]
        weight = (least - smallest) / (most - smallest)
        found = (1 - weight) * found + weight * stays
    return (found + found.T) / 2
