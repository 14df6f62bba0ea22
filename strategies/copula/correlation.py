"""Correlations from perturbed ranks, pairwise over what both columns have, and made a matrix.

Tang, Feng, Li and Wang, sections 2.2 and 3.1: debiasing makes products of ranks unbiased, since the
noise of different columns is independent. It also inflates each column's own variance; but that
of the true ranks is known, (n^2 - 1) / 12, so the noisy one is never used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from flwr_vertical.arrays import Array, Flags, Indices, Integers, Integers32
from flwr_vertical.errors import DataError
from strategies.copula.ranks import Flip

_FLOOR = 1e-4  # least eigenvalue of a correlation matrix: far below what ranks can tell
_MOST = 0.1  # and the most that `least_eigenvalue` makes of it
_SHARE = 0.5
_LEAST_VARIANCE = 0.25


@dataclass(frozen=True)
class RankCorrelations:
    """Rank correlations between all columns."""

    # (p, p): estimates for the true ranks; 1 on the diagonal, not yet a correlation matrix
    debiased: Array
    n_joint: Integers  # (p, p): how many rows have both columns


def rank_correlations(
    scores: Array, noise: Array, indicators: Flags | None = None
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
    debiased = np.clip(covariance / np.sqrt(variance * variance.T), -1.0, 1.0)
    np.fill_diagonal(debiased, 1.0)
    return RankCorrelations(debiased, joint.astype(np.int64))


def least_eigenvalue(p: int, n: float) -> float:
    """Return what the eigenvalues of p columns' correlations are held above, given n rows.

    Sampling moves eigenvalues by about ``2 sqrt(p / n)``, noise by more; projection then leaves
    many at the least value allowed. Where that is nearly 0, synthetic columns are nearly
    collinear, which real ones need not be, and whoever fits a regression to them gets huge
    coefficients. Half of ``p / n`` is far below what n rows can tell from 0.
    """
    return min(max(_SHARE * p / n, _FLOOR), _MOST)


def nearest_correlation(matrix: Array, least: float = _FLOOR, fixed: Flags | None = None) -> Array:
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
        for _ in range(200):
            shifted = found - correction
            values, vectors = np.linalg.eigh(shifted)
            projected = (vectors * np.maximum(values, least)) @ vectors.T
            correction = projected - shifted
            before, found = found, np.where(fixed, stays, projected)
            if np.abs(found - before).max() < 1e-7:
                break
    smallest = np.linalg.eigvalsh(found)[0]
    if smallest < least:
        most = np.linalg.eigvalsh(stays)[0]
        weight = (least - smallest) / (most - smallest)
        found = (1 - weight) * found + weight * stays
    return (found + found.T) / 2


@dataclass(frozen=True)
class Observed:
    """Perturbed ranks and noisy shares of all columns."""

    # (n_samples, d): perturbed ranks, 0 where a sample lacks the column. The labels come first,
    # if there are any. A nominal column may have one for each level, any other has one.
    ranks: Integers32
    flips: Sequence[Flip]  # One for each of p columns: what comparisons of its values spend
    # (n_levels - 1,): noisy shares of columns of levels; of numeric columns, where point masses
    # begin and end
    cuts: Sequence[Array | None]
    owners: Sequence[str]  # Whose column it is
    widths: Sequence[int]  # How many ranks each column has

    @property
    def places(self) -> list[slice]:
        """Of each column, where its ranks are among all."""
        ends = np.cumsum([0, *self.widths]).tolist()
        return [slice(first, after) for first, after in pairwise(ends)]

    @property
    def of_rank(self) -> Integers:
        """Number of the column that each of the d ranks is of, array of shape (d,)."""
        return np.repeat(np.arange(len(self.widths)), self.widths)

    @property
    def indicators(self) -> Flags:
        """Which ranks are of the level of a nominal column, array of shape (d,)."""
        return np.repeat(np.asarray(self.widths) > 1, self.widths)

    @property
    def n(self) -> Integers:
        """How many samples have each rank, array of shape (d,)."""
        return np.asarray(np.count_nonzero(self.ranks, axis=0), dtype=np.int64)

    @property
    def rank_flips(self) -> list[Flip]:
        """The chance of a comparison to be turned round, of each of the d ranks."""
        flips = [
            f if w == 1 else f.of_indicators for f, w in zip(self.flips, self.widths, strict=True)
        ]
        return [flips[column] for column in self.of_rank]

    def shares(self, column: int) -> Array:
        """Noisy shares of the levels of a nominal column, array of shape (n_levels,)."""
        cuts = self.cuts[column]
        assert cuts is not None
        return np.diff(cuts, prepend=0.0, append=1.0)

    def level_errors(self, column: int) -> float:
        """Share of samples of which a nominal column's ranks do not tell the level, at most.

        The largest of k debiased ranks is taken. That of the right level is n / 2 above any other,
        but for the noise of both.
        """
        place = self.places[column]
        spread = 2 * float(np.sqrt(2 * self.noise[place].max())) / float(self.n[place.start])
        return min((self.widths[column] - 1) * float(ndtr(-1 / spread)), 1.0)

    @property
    def signal(self) -> Array:
        """Variance of ranks without noise, as a share of n^2 / 12, (d,)."""
        found = np.ones(len(self.indicators))
        for column, place in enumerate(self.places):
            if self.widths[column] > 1:
                shares = self.shares(column)
                found[place] = 3 * shares * (1 - shares)
        return found

    @property
    def noise(self) -> Array:
        """Variance of the noise of debiased ranks, array of shape (d,)."""
        shares: list[float | None] = [None] * len(self.indicators)
        for column, place in enumerate(self.places):
            if self.widths[column] > 1:
                shares[place] = self.shares(column).tolist()
        return np.array(
            [
                f.noise_variance(n) if share is None else f.indicator_noise(n, share)
                for f, n, share in zip(self.rank_flips, self.n.tolist(), shares, strict=True)
            ]
        )


def correlate(observed: Observed) -> RankCorrelations:
    """Return the rank correlations of all pairs of columns."""
    scores = np.full(observed.ranks.shape, np.nan)
    for j, (flip, n) in enumerate(zip(observed.rank_flips, observed.n, strict=True)):
        seen = observed.ranks[:, j] > 0
        scores[seen, j] = flip.debias(observed.ranks[seen, j], int(n))
    return rank_correlations(scores, observed.noise, observed.indicators)


def check_joint(joint: Indices, owners: list[str], least: int) -> int:
    """Return the smallest number of rows that two columns share, or raise if it is too small.

    Shapes: joint (n_columns, n_columns): rows of two columns; owners (n_columns,).
    """
    j, k = divmod(int(joint.argmin()), len(joint))
    if joint[j, k] < least:
        pair = f"{owners[j]!r} and {owners[k]!r}" if j != k else f"{owners[j]!r} alone"
        raise DataError(
            f"only {joint[j, k]} rows have the columns of {pair} jointly observed, but min_joint = "
            f"{least} are asked for to estimate a correlation; align other rows, leave a party "
            "out, or set min_joint lower"
        )
    return int(joint[j, k])
