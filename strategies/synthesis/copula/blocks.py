"""From correlations of ranks to those of latents, where columns are nominal.

Perturbed ranks tell covariances of a nominal column's indicators with another column, a matrix C.
To first order in the latents' correlations R it is ``D R D'`` (`nominal`; the slope of an ordinary
column is its first Hermite coefficient). With the eigenvectors of D and D', that is an equation for
each pair of directions, c = d d' r. Directions that noise hides are shrunk (`_Block`). Strong
correlations have terms of higher order: means over simulated latents show how much, and R moves
until they agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strategies.synthesis.copula.bridge import hermite
from strategies.synthesis.copula.correlation import nearest_correlation
from strategies.synthesis.copula.nominal import Nominal

Array = npt.NDArray[np.float64]

_DRAWS = 16_384  # of latents, by which means are taken: a share has an error of 0.004 at most
_PASSES = 2
_PRIOR = 0.01  # least variance of correlations that noise is compared with
_LARGEST = 0.98  # singular value of a block of correlations
_FLAT = 1e-9  # slope of a direction in which nothing changes


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
    """The correlations between the latents of two columns, one of them nominal.

    Along a pair of directions, what is observed is c = g r + e with a known slope g and noise of
    variance v. If correlations r have variance t, their best linear estimate is
    ``g c / (g^2 + v / t)``. All pairs of directions of a block have the same t, which is the one
    that their sum of squares shows.

    Attributes
    ----------
    target : numpy.ndarray of shape (n_latents, n_other_latents)
        What is observed, less noise, as covariances of indicators.
    """

    def __init__(
        self, features: Sequence[Feature], j: int, k: int, observed: Array, noise: Array
    ) -> None:
        one, other = features[j], features[k]
        self.j, self.k = j, k
        self._at = np.ix_(*(np.arange(f.at.start, f.at.stop) for f in (one, other)))
        scale = np.outer(one.scale, other.scale)
        found = _centred(_centred(observed[self._at] / scale, one, 0), other, 1)
        slopes, self._left = np.linalg.eigh(one.slopes)
        other_slopes, self._right = np.linalg.eigh(other.slopes)
        gain = np.outer(slopes, other_slopes)
        told = np.abs(gain) > _FLAT
        own = self._left.T @ found @ self._right
        variance = (self._left**2).T @ (noise[self._at] / scale**2) @ self._right**2
        excess = float((own**2 - variance)[told].sum()) / max(float((gain**2)[told].sum()), _FLAT)
        self._weights = np.zeros_like(gain)
        self._weights[told] = (gain / (gain**2 + variance / max(excess, _PRIOR)))[told]
        self.target = self._left @ (gain * self._weights * own) @ self._right.T

    def add(self, matrix: Array, moved: Array) -> None:
        """Change correlations so that what is observed moves, to first order; in place."""
        step = self._left @ (self._weights * (self._left.T @ moved @ self._right)) @ self._right.T
        left, sizes, right = np.linalg.svd(matrix[self._at] + step, full_matrices=False)
        block = (left * np.minimum(sizes, _LARGEST)) @ right
        matrix[self._at] = block
        matrix[self._at[1].T, self._at[0].T] = block.T


def _centred(table: Array, feature: Feature, axis: int) -> Array:
    """Take off what levels cannot have in common: each row has one, so they add up to 0."""
    return table if feature.nominal is None else table - table.mean(axis=axis, keepdims=True)
