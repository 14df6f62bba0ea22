"""From correlations of ranks to those of normal latents, where columns have levels.

Equal values are ranked in a random order, which draws the rank correlations of a column with few
levels towards zero. How far follows from its margin: let Z be standard normal, U the rank share
that a latent Z gives, and g(Z) = E[U | Z] a step function with the levels' middle ranks. For
latents of correlation r (Mehler's formula)

    corr(U_1, U_2) = 12 sum_k a_1k a_2k r^k,     a_k = E[(g(Z) - 1/2) He_k(Z)] / sqrt(k!),

increasing in r; continuous columns give (6 / pi) arcsin(r / 2), as they must. Normal scores of
the ranks obey the same with their own coefficients. The paper leaves discrete variables to a
supplement; this is our choice. The margin is the noisy one, so nothing more is spent.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, ndtri

from flwr_vertical.arrays import Array, Integers

N_TERMS = 40
N_SHARES = 2000
"""Shares by which functions of ranks are integrated."""

_NOTHING = 1e-3  # of the variance of ranks or scores, which is 1 without ties
_POINTS = 200  # of a point mass, by which it is integrated over
_LARGEST = 0.995


def rank_coefficients(cuts: npt.ArrayLike | None) -> Array:
    """Return ``sqrt(12) a_k`` for k = 1, ..., 40 of one column, array of shape (40,).

    Shapes: cuts (n_levels - 1,): shares of samples up to each level but the last; or where each
    point mass of a column that is continuous elsewhere begins and ends; None for a continuous
    column.
    """
    if cuts is None or np.ndim(cuts) == 2:
        found = np.zeros(N_TERMS)
        m = np.arange((N_TERMS + 1) // 2)
        # 12 a_k^2 is the coefficient of r^k in (6 / pi) arcsin(r / 2), k = 2 m + 1.
        log_size = gammaln(2 * m + 1) - 2 * gammaln(m + 1) - np.log(2 * m + 1)
        log_size -= m * np.log(4) + (2 * m + 1) * np.log(2)
        found[2 * m] = (-1.0) ** m * np.sqrt(6 / np.pi * np.exp(log_size))
        for start, end in [] if cuts is None else np.asarray(cuts, dtype=np.float64):
            # Within a point mass all ranks have its middle instead of their own.
            share = start + (end - start) * (np.arange(_POINTS) + 0.5) / _POINTS
            moved = ((start + end) / 2 - share) * (end - start) / _POINTS
            found += 12**0.5 * hermite(ndtri(share)) @ moved
        return found
    shares = np.concatenate([[0.0], np.asarray(cuts, dtype=np.float64), [1.0]])
    middles = (shares[1:] + shares[:-1]) / 2
    found = step_coefficients(np.diff(middles), cuts)
    return found * 12**0.5


def score_coefficients(cuts: npt.ArrayLike | None, error: float = 0.0) -> Array:
    """Return coefficients of scores of noisy ranks, (40,), means where values are equal.

    The first is the correlation of these scores with the latent. Shapes: cuts as for
    `rank_coefficients`.
    """
    if cuts is None and error == 0:  # the score is the latent itself
        found = np.zeros(N_TERMS)
        found[0] = 1.0
        return found
    middles, scores = noisy_scores(error, cuts)
    if cuts is None:
        return hermite(ndtri(middles)) @ scores / len(scores)
    if np.ndim(cuts) == 2:
        scores = _within_ties(scores, cuts)
        return hermite(ndtri(middles)) @ scores / len(scores)
    # The mean score over a level's share, from the integral of the score over all shares below.
    shares = np.concatenate([[0.0], np.asarray(cuts, dtype=np.float64), [1.0]])
    below = np.concatenate([[0.0], np.cumsum(scores)]) / len(scores)
    integral = np.interp(shares, np.arange(len(below)) / len(scores), below)
    widths = np.diff(shares)
    means = np.divide(np.diff(integral), widths, out=np.zeros(len(widths)), where=widths > 0)
    return step_coefficients(np.diff(means), cuts)


def tied_scores(cuts: npt.ArrayLike | None, n: int = N_SHARES) -> Array:
    """Return normal scores of n ranks, means where values are equal, (n,).

    Equal values are ranked in random order: only their mean tells of the latent.
    """
    return _within_ties(_normal_scores(n), cuts)


@lru_cache(maxsize=4)
def _normal_scores(n: int) -> Array:
    found: Array = ndtri((np.arange(n) + 0.5) / n)
    found.flags.writeable = False
    return found


def _within_ties(scores: Array, cuts: npt.ArrayLike | None) -> Array:
    """Return scores of equal shares of samples, means where values are equal, (n,)."""
    if cuts is None:
        return scores
    ends = np.asarray(cuts, dtype=np.float64)
    if ends.ndim == 1:
        ends = np.column_stack([np.append(0.0, ends), np.append(ends, 1.0)])
    tied = scores.copy()
    for first, after in np.rint(ends * len(scores)).astype(np.int64):
        if after > first:
            tied[first:after] = scores[first:after].mean()
    return tied


def noisy_scores(error: float, cuts: npt.ArrayLike | None = None) -> tuple[Array, Array]:
    """Return shares, (2000,), and mean scores there after noise, of variance 1 with it."""
    middles = (np.arange(N_SHARES) + 0.5) / N_SHARES
    if error == 0:
        tied = tied_scores(cuts)
        return middles, tied / max(float(tied.std()), _NOTHING)
    order = _order_with_noise(error)
    scores = np.empty(len(order))
    tied = tied_scores(cuts, len(order))
    scores[order] = tied / max(float(tied.std()), _NOTHING)
    found: Array = scores.reshape(len(middles), -1).mean(axis=1)
    return middles, found


@lru_cache(maxsize=16)  # columns with as many rows share it
def _order_with_noise(error: float) -> Integers:
    """Return the order of shares after noise, each with 101 quantiles of it."""
    middles = (np.arange(N_SHARES) + 0.5) / N_SHARES
    noisy = middles[:, None] + error * ndtri((np.arange(101) + 0.5) / 101)
    return np.argsort(noisy, axis=None)


def hermite(x: Array) -> Array:
    """Return ``He_k(x) / sqrt(k!)`` for k = 1, ..., 40, array of shape (40, n)."""
    found = np.empty((N_TERMS, len(x)))
    before, polynomial = np.zeros_like(x), np.ones_like(x)
    for k in range(1, N_TERMS + 1):
        after = (x * polynomial - np.sqrt(k - 1) * before) / np.sqrt(k)
        before, polynomial = polynomial, after
        found[k - 1] = after
    return found


def step_coefficients(steps: Array, cuts: npt.ArrayLike) -> Array:
    """Expand a step function of a standard normal variable in Hermite polynomials.

    Shapes: steps (n_cuts,): by how much the function rises; cuts (n_cuts,): where, as shares;
    returns (40,): ``E[g(Z) He_k(Z)] / sqrt(k!)``: the integral of He_k phi beyond c is He_(k-1)(c)
    phi(c).
    """
    where = ndtri(np.clip(np.asarray(cuts, dtype=np.float64), 1e-12, 1 - 1e-12))
    density = np.exp(-(where**2) / 2) / np.sqrt(2 * np.pi)
    below = np.vstack([np.ones_like(where), hermite(where)[:-1]])  # He_(k-1) / sqrt((k-1)!)
    return np.asarray(below @ (steps * density) / np.sqrt(np.arange(1, N_TERMS + 1)))


def latent_correlations(observed: Array, coefficients: Array) -> Array:
    """Solve for the latents' correlations, pair by pair: 1 on the diagonal, else at most 0.995.

    Shapes: observed (p, p): correlations of ranks (or of normal scores); coefficients (p, 40): of
    each column; returns (p, p).
    """
    one, other = np.triu_indices(len(observed), k=1)
    target = observed[one, other]
    products = coefficients[one] * coefficients[other]
    low, high = np.full(len(target), -_LARGEST), np.full(len(target), _LARGEST)
    for _ in range(40):  # bisection: halves the interval to below 1e-11
        middle = (low + high) / 2
        value = np.zeros(len(middle))
        for k in range(N_TERMS - 1, -1, -1):
            value = (value + products[:, k]) * middle
        below = value < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    # A column that is one level, or one point mass, says nothing of any other.
    told = (coefficients**2).sum(axis=1) > _NOTHING
    solved = np.where(told[one] & told[other], (low + high) / 2, 0.0)
    found = np.eye(len(observed))
    found[one, other] = found[other, one] = solved
    return found
