"""From correlations of ranks to those of latents, where columns are nominal.

Perturbed ranks tell covariances of a nominal column's indicators with another column, a matrix C.
To first order in the latents' covariances R it is ``D R D'`` (`nominal`; the slope of an ordinary
column is its first Hermite coefficient). With the eigenvectors of D and D', that is an equation for
each pair of directions, c = d d' r. Directions that noise hides are shrunk (`_Block`).

Two things are left to passes over simulated latents. Strong dependence has terms of higher order:
means over the simulation show how much, and R moves by it. And R may ask for more than independent
latents of a column can have in common with another column; then their own covariance grows, by the
least that is enough (`_widen`), with new offsets and slopes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flwr_vertical.arrays import Array
from strategies.copula.correlation import nearest_correlation
from strategies.copula.nominal import Nominal
from strategies.copula.rank_to_normal import hermite

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
        found: Array = np.eye(len(self.nominal.shares))[levels] - self.nominal.shares
        return found


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
                blocks.append(_Block(features, j, k, observed, noise))
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


def _widen(matrix: Array, blocks: "Sequence[_Block]", features: Sequence[Feature]) -> None:
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


class _Block:
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
