"""Nominal columns: a latent variable for each level, the level being the largest of them.

A column of k levels without an order has normal latents ``L_1, ..., L_k`` of covariance S, and
takes the level a with the largest ``L_a + o_a``. The offsets o give the levels their shares p. With
D the derivative of p by o, a symmetric matrix whose rows add up to 0, Stein's lemma gives
``cov(1_a, L_b) = (D S)_ab``; for any latent Z of another column, of covariances r with L,

    cov(1_a, Z) = sum_b D_ab r_b;

and, to first order in the matrix R of covariances between the latents of two such columns,

    cov(1_a, 1'_b) = (D R D')_ab.

Where latents are independent, offsets and slopes are integrals over one variable. Other covariances
of a column's own latents say which levels lie near each other; no margin shows them, so
`fit_blocks` takes the nearest to independence that correlations with other columns allow.

Perturbed ranks tell covariances of a nominal column's indicators with another column, a matrix C.
To first order in the latents' covariances R it is ``D R D'`` (the slope of an ordinary
column is its first Hermite coefficient). With the eigenvectors of D and D', that is an equation for
each pair of directions, c = d d' r. Directions that noise hides are shrunk (`_PairFit`).

Two things are left to passes over simulated latents. Strong dependence has terms of higher order:
means over the simulation show how much, and R moves by it. And R may ask for more than independent
latents of a column can have in common with another column; then their own covariance grows, by the
least that is enough (`_widen`), with new offsets and slopes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from flwr_vertical.arrays import Array, Integers
from strategies.copula.correlation import nearest_correlation
from strategies.copula.rank_to_normal import hermite

_POINTS = np.linspace(-9.0, 9.0, 721)
_NEVER = -60.0  # offset of a level without a share
_TRIES = 30


@dataclass(frozen=True)
class Nominal:
    """Levels as the largest of normal latents."""

    shares: Array  # (k,): of the levels; they add up to 1
    offsets: Array  # (k,): of their latents
    # (k, k): derivatives of the shares by the offsets, which are the covariances of indicators
    # with latents
    slopes: Array

    @classmethod
    def of(cls, shares: npt.ArrayLike) -> "Nominal":
        """Find the offsets for independent latents, by Newton's method; shares (k,)."""
        given = np.maximum(np.asarray(shares, dtype=np.float64), 0.0)
        given = given / given.sum()
        held = np.flatnonzero(given)
        wanted, offsets = given[held], ndtri(np.clip(given[held], 1e-9, 1 - 1e-9))
        found, slopes = _shares(offsets)
        error = np.abs(found - wanted).max()
        for _ in range(100):
            if error < 1e-10:
                break
            step = np.linalg.pinv(slopes, rcond=1e-13, hermitian=True) @ (wanted - found)
            step /= max(np.abs(step).max(), 1.0)
            while True:  # halved until it helps: the slopes of rare levels change fast
                found, slopes = _shares(offsets + step)
                moved = np.abs(found - wanted).max()
                if moved < error or np.abs(step).max() < 1e-12:
                    break
                step = step / 2
            offsets, error = offsets + step, moved
        full = np.full(len(given), _NEVER)
        full[held] = offsets
        derivative = np.zeros((len(given), len(given)))
        derivative[np.ix_(held, held)] = slopes
        return cls(given, full, derivative)

    def calibrated(self, latents: Array, wanted: Array) -> Array:
        """Return offsets that give levels about so many of the rows, array of shape (k,).

        Shapes: latents (n_rows, k): of any distribution; the slopes only say where to look; wanted
        (k,): rows of each level.
        """
        inverse = np.linalg.pinv(self.slopes, rcond=1e-9, hermitian=True)
        best, offsets, step = self.offsets, self.offsets, np.zeros(len(wanted))
        least = np.inf
        for _ in range(_TRIES):
            made = np.bincount((latents + offsets).argmax(axis=1), minlength=len(wanted))
            off = np.abs(wanted - made).max()
            if off < least:
                best, least = offsets, off
                step = np.clip(inverse @ (wanted - made) / len(latents), -0.5, 0.5)
            else:
                step = step / 2
            if least <= 1:
                break
            offsets = best + step
        return best

    def fitted(self, latents: Array, covariance: Array) -> "Nominal":
        """Return offsets and slopes for latents drawn from another covariance."""
        offsets = self.calibrated(latents, self.shares * len(latents))
        held = np.eye(len(offsets))[(latents + offsets).argmax(axis=1)]
        slopes = np.linalg.solve(covariance, latents.T @ held / len(latents))
        slopes = (slopes + slopes.T) / 2 * np.outer(self.shares > 0, self.shares > 0)
        np.fill_diagonal(slopes, 0.0)  # rows add up to 0, but for the error of the draws
        np.fill_diagonal(slopes, -slopes.sum(axis=1))
        return Nominal(self.shares, offsets, slopes)

    def levels_of(self, latents: Array) -> Integers:
        """Return level numbers, shape (n_rows,), of latents of shape (n_rows, k)."""
        return np.asarray((latents + self.offsets).argmax(axis=1))


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


def assign_levels(latents: Array, shares: Array, rng: np.random.Generator) -> Integers:
    """Give rows levels by their latents so that each level has its share of them.

    Shapes: latents (n_rows, k): one for each level; they need not be independent; shares (k,): of
    the levels; returns (n_rows,): the level of the largest latent, each plus an offset of the
    level.
    """
    n = len(latents)
    nominal = Nominal.of(shares)
    ends = np.floor(np.cumsum(nominal.shares) * n + rng.random()).astype(np.int64)
    ends[-1] = n
    wanted = np.diff(np.minimum(ends, n), prepend=0)
    latents = latents + nominal.calibrated(latents, wanted)
    levels: Integers = latents.argmax(axis=1).astype(np.int64)
    while True:
        excess = np.bincount(levels, minlength=len(wanted)) - wanted
        if not excess.any():
            return levels
        full, short = int(excess.argmax()), int(excess.argmin())
        rows = np.flatnonzero(levels == full)
        loss = latents[rows, full] - latents[rows, short]
        moved = np.argsort(loss, kind="stable")[: min(excess[full], -excess[short])]
        levels[rows[moved]] = short


def indicator_gap(share: float, error: float) -> float:
    """Return by how much the scores of an indicator's noisy ranks differ in the mean.

    Scores have variance 1 and are one for the highest share of noisy ranks, another for the others.
    """
    share, error = min(max(share, 1e-6), 1 - 1e-6), max(error, 1e-6)
    ranks = np.linspace(-8 * error, 0.5 + 8 * error, 4001)
    below = share * ndtr((ranks - 0.5) / error) + (1 - share) * ndtr(ranks / error)
    cut = float(np.interp(1 - share, below, ranks))
    above = ndtr((0.5 - cut) / error) - ndtr(-cut / error)
    return float(above / np.sqrt(share * (1 - share)))


_DRAWS = 16_384  # of latents, by which means are taken: a share has an error of 0.004 at most
_PASSES = 2
_PRIOR = 0.01  # least variance of covariances that noise is compared with
_LARGEST = 0.98  # share of a latent's variance that another column may explain
_GRID = np.linspace(-6.0, 6.0, 481)
_FLAT = 1e-9  # slope of a direction in which nothing changes


@dataclass(frozen=True)
class Feature:
    """What is observed of a column, as a function of its latents."""

    at: slice  # Its latents, among all
    series: Array | None = None  # (40,): hermite coefficients of an ordinary column (`bridge`)
    nominal: Nominal | None = None  # Of a nominal column
    # (k,): what an indicator counts in the observed correlations
    scale: Array = field(default_factory=lambda: np.ones(1))

    @property
    def slopes(self) -> Array:
        """Covariances with the latents, array of shape (n_latents, n_latents)."""
        if self.nominal is None:
            return np.array([[1.0 if self.series is None else self.series[0]]])
        return self.nominal.slopes

    def fitted(self, latents: Array, covariance: Array) -> "Feature":
        """Return the same for latents of another covariance.

        Shapes: latents (n_rows, n_latents): drawn from it; slopes are ``cov(1_a, L)
        covariance^-1``, by Stein's lemma; covariance (n_latents, n_latents).
        """
        if self.nominal is None:
            return self
        return replace(self, nominal=self.nominal.fitted(latents, covariance))

    def values(self, latents: Array) -> Array:
        """Return what is observed of latents, array of shape (n_rows, n_latents), centred."""
        if self.nominal is None:
            assert self.series is not None
            on_grid = hermite(_GRID).T @ self.series
            return np.interp(latents[:, 0], _GRID, on_grid)[:, None]
        levels = self.nominal.levels_of(latents)
        return np.asarray(np.eye(len(self.nominal.shares))[levels] - self.nominal.shares)


def fit_blocks(
    start: Array, observed: Array, noise: Array, features: Sequence[Feature], least: float
) -> Array:
    """Solve for the covariances of nominal columns' latents with all others.

    Shapes: start (d, d): correlations of latents; of ordinary columns with each other, as they
    shall be; observed (d, d): correlations of what is observed; noise (d, d): their variances by
    privacy noise; returns (d, d): A covariance matrix; variances are 1, but for latents of nominal
    columns.
    """
    matrix = start.copy()
    features = list(features)
    fixed = np.eye(len(matrix), dtype=np.bool_)
    blocks = []
    for j, one in enumerate(features):
        if one.nominal is not None:
            fixed[one.at, one.at] = True
            matrix[one.at, one.at] = np.eye(one.at.stop - one.at.start)
        for k, other in enumerate(features[:j]):
            if one.nominal is not None or other.nominal is not None:
                blocks.append(_PairFit(features, j, k, observed, noise))
    if not blocks:
        return nearest_correlation(matrix, least)
    normal = np.random.default_rng(0).standard_normal((_DRAWS // 2, len(matrix)))
    normal = np.vstack([normal, -normal])
    for block in blocks:
        block.add(matrix, block.target, features)
    for _ in range(_PASSES):
        _widen(matrix, blocks, features)
        matrix = nearest_correlation(matrix, least, fixed=fixed)
        drawn = normal @ np.linalg.cholesky(matrix).T
        features = [
            feature.fitted(drawn[:, feature.at], matrix[feature.at, feature.at])
            for feature in features
        ]
        values = [feature.values(drawn[:, feature.at]) for feature in features]
        for block in blocks:
            made = values[block.j].T @ values[block.k] / len(drawn)
            block.add(matrix, block.target - made, features)
    _widen(matrix, blocks, features)
    return nearest_correlation(matrix, least, fixed=fixed)


def _widen(matrix: Array, blocks: "Sequence[_PairFit]", features: Sequence[Feature]) -> None:
    """Give nominal columns' latents the covariances that those with other columns ask for.

    With C the covariances of a column's latents with another column's, of covariance W, its own
    cannot be less than ``C W^-1 C'``. In place.
    """
    for block in blocks:
        for j, k in ((block.j, block.k), (block.k, block.j)):
            one, other = features[j].at, features[k].at
            if features[j].nominal is None:
                continue
            cross = matrix[one, other]
            asked = cross @ np.linalg.solve(matrix[other, other], cross.T) / _LARGEST
            values, vectors = np.linalg.eigh(asked - matrix[one, one])
            matrix[one, one] += (vectors * np.maximum(values, 0.0)) @ vectors.T


class _PairFit:
    """The correlations between the latents of two columns, one of them nominal.

    Along a pair of directions, what is observed is c = g r + e with a known slope g and noise of
    variance v. If correlations r have variance t, their best linear estimate is
    ``g c / (g^2 + v / t)``. All pairs of directions of a block have the same t, which is the one
    that their sum of squares shows.
    """

    def __init__(
        self, features: Sequence[Feature], j: int, k: int, observed: Array, noise: Array
    ) -> None:
        one, other = features[j], features[k]
        self.j, self.k = j, k
        self._at = np.ix_(*(np.arange(f.at.start, f.at.stop) for f in (one, other)))
        scale = np.outer(one.scale, other.scale)
        found = _centred(_centred(observed[self._at] / scale, one, 0), other, 1)
        self._variance = noise[self._at] / scale**2
        left, right, gain, spread = self._directions(features)
        told = np.abs(gain) > _FLAT
        own = left.T @ found @ right
        excess = float((own**2 - spread)[told].sum()) / max(float((gain**2)[told].sum()), _FLAT)
        self._prior = max(excess, _PRIOR)
        self.target = left @ (own * gain**2 / (gain**2 + spread / self._prior)) @ right.T

    def _directions(self, features: Sequence[Feature]) -> tuple[Array, Array, Array, Array]:
        """Return the directions of both columns, and of each pair slope and variance of noise."""
        slopes, left = np.linalg.eigh(features[self.j].slopes)
        other_slopes, right = np.linalg.eigh(features[self.k].slopes)
        spread: Array = (left**2).T @ self._variance @ right**2
        return left, right, np.outer(slopes, other_slopes), spread

    def add(self, matrix: Array, moved: Array, features: Sequence[Feature]) -> None:
        """Change correlations so that what is observed moves, to first order; in place."""
        left, right, gain, spread = self._directions(features)
        told = np.abs(gain) > _FLAT
        weights = np.zeros_like(gain)
        weights[told] = (gain / (gain**2 + spread / self._prior))[told]
        step = left @ (weights * (left.T @ moved @ right)) @ right.T
        matrix[self._at] += step
        matrix[self._at[1].T, self._at[0].T] += step.T


def _centred(table: Array, feature: Feature, axis: int) -> Array:
    """Take off what levels cannot have in common: each row has one, so they add up to 0."""
    return table if feature.nominal is None else table - table.mean(axis=axis, keepdims=True)
