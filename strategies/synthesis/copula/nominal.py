"""Nominal columns: a latent variable for each level, the level being the largest of them.

A column of k levels without an order has latents ``L_1, ..., L_k``, independent of each other and
standard normal, and takes the level a with the largest ``L_a + o_a``. The offsets o give the levels
their shares p. With D the derivative of p by o, a symmetric matrix whose rows add up to 0, Stein's
lemma gives for any latent Z of another column, of correlations r with L,

    cov(1_a, Z) = sum_b D_ab r_b,

and, to first order in R, the matrix of correlations between the latents of two such columns,

    cov(1_a, 1'_b) = (D R D')_ab.

Covariances of indicators are what perturbed ranks tell. They are solved for R direction by
direction of D, each shrunk by its noise; what first order leaves is taken off by simulation
(`fit_blocks`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from strategies.synthesis.copula.bridge import hermite
from strategies.synthesis.copula.correlation import nearest_correlation

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_POINTS = np.linspace(-9.0, 9.0, 721)
_NEVER = -60.0  # offset of a level without a share
_DRAWS = 32_768  # by which the first order is corrected; a share has an error of 0.003 at most
_PASSES = 3
PRIOR = 0.01
_LARGEST = 0.98  # singular value of a block of correlations


@dataclass(frozen=True)
class Nominal:
    """Levels as the largest of normal latents.

    Parameters
    ----------
    shares : numpy.ndarray of shape (k,)
        Of the levels; they add up to 1.
    offsets : numpy.ndarray of shape (k,)
        Of their latents.
    slopes : numpy.ndarray of shape (k, k)
        Derivatives of the shares by the offsets, which are the covariances of indicators with
        latents.
    """

    shares: Array
    offsets: Array
    slopes: Array

    @classmethod
    def of(cls, shares: npt.ArrayLike) -> "Nominal":
        """Find the offsets that give levels their shares, by Newton's method.

        Parameters
        ----------
        shares : array of shape (k,)
            Not negative; they are divided by their sum.
        """
        shares = np.maximum(np.asarray(shares, dtype=np.float64), 0.0)
        shares = shares / shares.sum()
        held = np.flatnonzero(shares)
        wanted, offsets = shares[held], ndtri(np.clip(shares[held], 1e-9, 1 - 1e-9))
        found, slopes = _shares(offsets)
        error = np.abs(found - wanted).max()
        for _ in range(100):
            if error < 1e-10:
                break
            step = np.linalg.pinv(slopes, rcond=1e-13, hermitian=True) @ (wanted - found)
            step *= min(1.0, 1.0 / max(np.abs(step).max(), 1e-300))
            while True:  # halved until it helps: the slopes of rare levels change fast
                found, slopes = _shares(offsets + step)
                moved = np.abs(found - wanted).max()
                if moved < error or np.abs(step).max() < 1e-12:
                    break
                step /= 2
            offsets, error = offsets + step, moved
        full = np.full(len(shares), _NEVER)
        full[held] = offsets
        derivative = np.zeros((len(shares), len(shares)))
        derivative[np.ix_(held, held)] = slopes
        return cls(shares, full, derivative)

    def levels_of(self, latents: Array) -> Integers:
        """Return level numbers, shape (n_rows,), of latents of shape (n_rows, k)."""
        found: Integers = (latents + self.offsets).argmax(axis=1)
        return found


def _shares(offsets: Array) -> tuple[Array, Array]:
    """Return the shares of levels and their derivatives by the offsets, on a grid."""
    around = _POINTS + offsets.max()
    x = around[:, None] - offsets
    below = log_ndtr(x)
    density = -(x**2) / 2 - np.log(2 * np.pi) / 2
    total = below.sum(axis=1, keepdims=True)
    width = _POINTS[1] - _POINTS[0]
    shares = np.exp(density + total - below).sum(axis=0) * width
    # The derivative of the chance of a by the offset of b: both are at x, all others below it.
    ratio = np.exp(density - below)
    slopes = -(ratio * np.exp(total)).T @ ratio * width
    np.fill_diagonal(slopes, 0.0)
    np.fill_diagonal(slopes, -slopes.sum(axis=1))
    return shares, slopes


@dataclass(frozen=True)
class Feature:
    """What is observed of a column, as a function of its latents.

    Parameters
    ----------
    at : slice
        Its latents, among all.
    series : numpy.ndarray of shape (40,) or None
        Hermite coefficients of an ordinary column (`bridge`).
    nominal : Nominal or None
        Of a nominal column.
    scale : float or numpy.ndarray of shape (k,)
        What an indicator counts in the observed correlations.
    """

    at: slice
    series: Array | None = None
    nominal: Nominal | None = None
    scale: Array = field(default_factory=lambda: np.ones(1))

    @property
    def slopes(self) -> Array:
        """Covariances with the latents, array of shape (n_latents, n_latents)."""
        if self.nominal is None:
            return np.array([[1.0 if self.series is None else self.series[0]]])
        return self.nominal.slopes

    def values(self, latents: Array) -> Array:
        """Return what is observed of latents, array of shape (n_rows, n_latents), centred."""
        if self.nominal is None:
            assert self.series is not None
            return (hermite(latents[:, 0]).T @ self.series)[:, None]
        levels = self.nominal.levels_of(latents)
        found: Array = np.eye(len(self.nominal.shares))[levels] - self.nominal.shares
        return found


def assign_levels(latents: Array, shares: Array, rng: np.random.Generator) -> Integers:
    """Give rows levels by their latents so that each level has its share of them.

    Parameters
    ----------
    latents : numpy.ndarray of shape (n_rows, k)
        One for each level; they need not be independent.
    shares : numpy.ndarray of shape (k,)
        Of the levels. Counts are their parts of the rows, rounded up or down at random.
    rng : numpy.random.Generator
        Simulation randomness.

    Returns
    -------
    numpy.ndarray of shape (n_rows,), int64
        The level of the largest latent, each plus an offset of the level. The last few rows that
        this would give a level too many have the next one that is short of rows.
    """
    n = len(latents)
    nominal = Nominal.of(shares)
    ends = np.floor(np.cumsum(nominal.shares) * n + rng.random()).astype(np.int64)
    ends[-1] = n
    wanted = np.diff(np.minimum(ends, n), prepend=0)
    inverse = np.linalg.pinv(nominal.slopes, rcond=1e-9, hermitian=True)
    offsets, best, least, pace = nominal.offsets.copy(), nominal.offsets, n + 1, 1.0
    for _ in range(30):
        found = (latents + offsets).argmax(axis=1)
        lacking = wanted - np.bincount(found, minlength=len(wanted))
        if np.abs(lacking).max() < least:
            best, least = offsets.copy(), int(np.abs(lacking).max())
        else:
            pace /= 2
        if least <= 1:
            break
        offsets = offsets + pace * np.clip(inverse @ (lacking / n), -0.5, 0.5)
    offset_latents = latents + best
    levels = offset_latents.argmax(axis=1)
    while True:
        excess = np.bincount(levels, minlength=len(wanted)) - wanted
        if not excess.any():
            return levels.astype(np.int64)
        full, short = int(excess.argmax()), int(excess.argmin())
        rows = np.flatnonzero(levels == full)
        loss = offset_latents[rows, full] - offset_latents[rows, short]
        moved = np.argsort(loss, kind="stable")[: min(excess[full], -excess[short])]
        levels[rows[moved]] = short


def indicator_gap(share: float, error: float) -> float:
    """Return by how much the normal scores of an indicator's noisy ranks differ in the mean.

    Parameters
    ----------
    share : float
        Of the rows with the level.
    error : float
        Standard deviation of the noise of ranks, as a share of their number. Without noise the
        ranks of rows with the level and without it are 1/2 apart.
    """
    share, error = min(max(share, 1e-6), 1 - 1e-6), max(error, 1e-6)
    chances = (np.arange(2000) + 0.5) / 2000
    with_it, without = 0.5 + error * ndtri(chances), error * ndtri(chances)

    def score(rank: Array) -> Array:
        below = share * ndtr((rank - 0.5) / error) + (1 - share) * ndtr(rank / error)
        found: Array = ndtri(np.clip(below, 1e-12, 1 - 1e-12))
        return found

    return float(score(with_it).mean() - score(without).mean())


def fit_blocks(
    start: Array, observed: Array, noise: Array, features: Sequence[Feature], least: float
) -> Array:
    """Solve for the correlations of nominal columns' latents with all others.

    Parameters
    ----------
    start : numpy.ndarray of shape (d, d)
        Correlations of latents; of ordinary columns with each other, as they shall be.
    observed : numpy.ndarray of shape (d, d)
        Correlations of what is observed.
    noise : numpy.ndarray of shape (d, d)
        Their variances by privacy noise.
    features : sequence of Feature
        Of the columns, in order.
    least : float
        No eigenvalue of the result is smaller.

    Returns
    -------
    numpy.ndarray of shape (d, d)
        A correlation matrix; latents of one nominal column are independent.
    """
    matrix = start.copy()
    matrix[~np.isfinite(matrix)] = 0.0
    fixed = np.eye(len(matrix), dtype=np.bool_)
    blocks = []
    for j, one in enumerate(features):
        if one.nominal is not None:
            fixed[one.at, one.at] = True
            matrix[one.at, one.at] = np.eye(one.at.stop - one.at.start)
        for k, other in enumerate(features[:j]):
            if one.nominal is not None or other.nominal is not None:
                blocks.append(_Block(features, j, k, observed, noise))
    if not blocks:
        return nearest_correlation(matrix, least)
    normal = np.random.default_rng(0).standard_normal((_DRAWS // 2, len(matrix)))
    normal = np.vstack([normal, -normal])
    for block in blocks:
        block.add(matrix, block.target)
    for _ in range(_PASSES):
        matrix = nearest_correlation(matrix, least, fixed=fixed)
        drawn = normal @ np.linalg.cholesky(matrix).T
        values = [feature.values(drawn[:, feature.at]) for feature in features]
        for block in blocks:
            made = values[block.j].T @ values[block.k] / len(drawn)
            block.add(matrix, block.target - made)
    return nearest_correlation(matrix, least, fixed=fixed)


class _Block:
    """The correlations between the latents of two columns, one of them nominal."""

    def __init__(self, features: Sequence[Feature], j: int, k: int, observed: Array, noise: Array):
        one, other = features[j], features[k]
        self.j, self.k = j, k
        self.at = np.ix_(range(one.at.start, one.at.stop), range(other.at.start, other.at.stop))
        scale = np.outer(one.scale, other.scale)
        found = _centred(_centred(observed[self.at] / scale, one, 0), other, 1)
        variance = noise[self.at] / scale**2
        (slopes, self._left), (other_slopes, self._right) = (
            np.linalg.eigh(feature.slopes) for feature in (one, other)
        )
        gain = np.outer(slopes, other_slopes)
        gain[np.abs(gain) < 1e-9] = 0.0
        own = self._left.T @ found @ self._right
        spread = (self._left**2).T @ variance @ self._right**2
        told = max(float((own**2 - spread)[gain > 0].sum()), 0.0) / max(float((gain**2).sum()), 1e-300)
        self._weights = np.divide(gain, gain**2 + spread / max(told, PRIOR), out=np.zeros_like(gain), where=gain > 0)
        self.target = self._left @ (gain * self._weights * own) @ self._right.T
        # `add` shrinks what it is given; the target is shrunk already.
        self._unshrunk = np.divide(1.0, gain, out=np.zeros_like(gain), where=gain > 0)

    def add(self, matrix: Array, moved: Array) -> None:
        """Change correlations so that what is observed moves, to first order; in place."""
        step = self._left @ (self._weights * (self._left.T @ moved @ self._right)) @ self._right.T
        left, sizes, right = np.linalg.svd(matrix[self.at] + step, full_matrices=False)
        block = (left * np.minimum(sizes, _LARGEST)) @ right
        matrix[self.at] = block
        matrix[self.at[1].T, self.at[0].T] = block.T


def _centred(table: Array, feature: Feature, axis: int) -> Array:
    """Take off what levels cannot have in common: each row has one, so they add up to 0."""
    return table if feature.nominal is None else table - table.mean(axis=axis, keepdims=True)
