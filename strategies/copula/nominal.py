"""Nominal columns: a latent variable for each level, the level being the largest of them.

A column of k levels without an order has normal latents ``L_1, ..., L_k`` of covariance S, and
takes the level a with the largest ``L_a + o_a``. The offsets o give the levels their shares p. With
D the derivative of p by o, a symmetric matrix whose rows add up to 0, Stein's lemma gives
``cov(1_a, L_b) = (D S)_ab``; for any latent Z of another column, of covariances r with L,

    cov(1_a, Z) = sum_b D_ab r_b;

and, to first order in the matrix R of covariances between the latents of two such columns,

    cov(1_a, 1'_b) = (D R D')_ab.

Where latents are independent, offsets and slopes are integrals over one variable. Other covariances
of a column's own latents say which levels lie near each other; no margin shows them, so `blocks`
takes the nearest to independence that correlations with other columns allow.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from flwr_vertical.arrays import Array, Integers

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
        """Find the offsets for independent latents, by Newton's method.

        Shapes: shares (k,): not negative; they are divided by their sum.
        """
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
    """Return by how much the normal scores of an indicator's noisy ranks differ in the mean."""
    share, error = min(max(share, 1e-6), 1 - 1e-6), max(error, 1e-6)
    chances = (np.arange(2000) + 0.5) / 2000
    with_it, without = 0.5 + error * ndtri(chances), error * ndtri(chances)

    def score(rank: Array) -> Array:
        below = share * ndtr((rank - 0.5) / error) + (1 - share) * ndtr(rank / error)
        found: Array = ndtri(np.clip(below, 1e-12, 1 - 1e-12))
        return found

    return float(score(with_it).mean() - score(without).mean())
