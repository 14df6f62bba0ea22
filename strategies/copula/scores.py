"""Latent scores of perturbed ranks, where rows are missing depending on what others show.

Tang, Feng, Li and Wang, section 2.4. Their margin (2.6) at the reordered values (2.7) is

    F~(m-th smallest observed value) = Phi(m-th smallest latent score Z'),

that is, F~ = H(F_observed) with H(m / n) = Phi(Z'_(m)). H needs perturbed ranks only. So it is
computed here, by the server, from what was released already; the holder's part stays the observed
margin, with its exact sensitivity 1 / n, and no further round is needed.

The scores of a column are an increasing function of its perturbed ranks. The paper sorts a normal
sample in their order and redraws each score between its neighbours (2.8), which moves it by
O(1 / n) a sweep. Here the function is solved for first: if scores are normal given the row's other
scores, with mean mu_i and standard deviation s_i, then, whichever of these decide what is observed,

    sum over observed i of 1{rank_i <= m}  =  m  =  sum over observed i of Phi((h(m) - mu_i) / s_i)

holds in expectation (missing at random), and the right-hand side increases in h. The sweeps follow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_GRID = np.linspace(-5.5, 5.5, 111)
_MOST_ROWS = 4000  # conditional means enter H as a sample of at most so many


@dataclass
class Scores:
    """Latent scores of all samples.

    Parameters
    ----------
    z : numpy.ndarray of shape (n_samples, p)
        NaN where a sample lacks the column.
    order : list of numpy.ndarray of shape (n_j,), int64
        For each column, the samples that have it, in the order of their perturbed ranks.
    patterns : list of (columns, rows)
        Columns that are observed together, and the samples where just these are.
    """

    z: Array
    order: list[Integers]
    patterns: list[tuple[Integers, Integers]]

    def observed_share(self, j: int, probability: Array) -> Array:
        """Return the inverse of H of column j: how many of the observed lie below a quantile."""
        shares, values = self._map(j)
        found: Array = np.interp(probability, values, shares)
        return found

    def probability(self, j: int, share: Array) -> Array:
        """Return H of column j: the quantile that has a share of the observed below it."""
        shares, values = self._map(j)
        found: Array = np.interp(share, shares, values)
        return found

    def _map(self, j: int) -> tuple[Array, Array]:
        z = self.z[self.order[j], j]
        ends = [0.0], [1.0]
        return (
            np.concatenate([ends[0], middles(len(z)), ends[1]]),
            np.concatenate([ends[0], ndtr(z), ends[1]]),
        )


def middles(n: int) -> Array:
    """Return (m - 1/2) / n for m = 1, ..., n."""
    return (np.arange(n) + 0.5) / n


def start_scores(ranks: npt.NDArray[np.int32], rng: np.random.Generator) -> Scores:
    """Give every rank its normal score, array of shape (n_samples, p).

    Parameters
    ----------
    ranks : numpy.ndarray of shape (n_samples, p)
        Perturbed ranks, 0 = missing. Equal ones are ordered at random.
    rng : numpy.random.Generator
        Simulation randomness.
    """
    z = np.full(ranks.shape, np.nan)
    order = []
    for j in range(ranks.shape[1]):
        seen = rng.permutation(np.flatnonzero(ranks[:, j]))
        rows = seen[np.argsort(ranks[seen, j], kind="stable")]
        z[rows, j] = ndtri(middles(len(rows)))
        order.append(rows)
    seen_all, which = np.unique(ranks > 0, axis=0, return_inverse=True)
    groups = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    patterns = [
        (np.flatnonzero(columns), rows) for columns, rows in zip(seen_all, groups, strict=True)
    ]
    return Scores(z, order, [(columns, rows) for columns, rows in patterns if len(columns)])


def fit_maps(scores: Scores, omega: Array, sweeps: int = 2) -> None:
    """Solve for each column's function h, again and again, given the others' scores; in place.

    Parameters
    ----------
    scores : Scores
        As `start_scores` or an earlier call left them.
    omega : numpy.ndarray of shape (p, p)
        Correlation matrix of the scores.
    sweeps : int
        How often all columns are gone through.
    """
    precisions = _precisions(scores, omega)
    for _ in range(sweeps):
        for j, rows in enumerate(scores.order):
            mean, spread = _conditional(scores, precisions, j)
            mean, spread = mean[rows], spread[rows]
            # The sum over rows changes slowly with them, so a systematic sample is enough.
            step = -(-len(rows) // _MOST_ROWS)
            share = np.zeros(len(_GRID))
            for block in np.array_split(np.arange(0, len(rows), step), 4):
                if len(block):
                    share += ndtr((_GRID - mean[block, None]) / spread[block, None]).sum(axis=0)
            share /= len(range(0, len(rows), step))
            # A flat end would give the same score to many.
            share += 1e-9 * _GRID
            scores.z[rows, j] = np.interp(middles(len(rows)), share, _GRID)


def draw_scores(scores: Scores, omega: Array, rng: np.random.Generator, sweeps: int = 1) -> Array:
    """Redraw each score between its neighbours in rank, then those of missing cells.

    The truncated normal sweep of Eq. 2.8: a score's neighbours are those of the next lower and the
    next higher rank, so all even ranks can be drawn at once, and then all odd ones.

    Returns
    -------
    numpy.ndarray of shape (n_samples, p)
        Complete.
    """
    drawn = Scores(scores.z.copy(), scores.order, scores.patterns)
    precisions = _precisions(drawn, omega)
    for _ in range(sweeps):
        for j, rows in enumerate(drawn.order):
            mean, spread = _conditional(drawn, precisions, j)
            drawn.z[rows, j] = _sweep(drawn.z[rows, j], mean[rows], spread[rows], rng)
    return fill_missing(drawn, omega, rng)


def _sweep(z: Array, mean: Array, spread: Array, rng: np.random.Generator) -> Array:
    """Redraw ordered scores, even ranks first; array of shape (n,)."""
    padded = np.concatenate([[-np.inf], z, [np.inf]])
    for parity in (0, 1):
        at = np.arange(parity, len(z), 2)
        low, high = padded[at], padded[at + 2]
        padded[at + 1] = truncated_normal(mean[at], spread[at], low, high, rng)
    return padded[1:-1]


def truncated_normal(
    mean: Array, spread: Array, low: Array, high: Array, rng: np.random.Generator
) -> Array:
    """Draw from normal distributions between two ends, by inversion; all arrays of shape (n,).

    Where an interval lies so far in a tail that its probability is lost to rounding, the middle of
    the interval (or its finite end) is taken: such an interval is short.
    """
    a, b = (low - mean) / spread, (high - mean) / spread
    flip = a + b > 0  # the lower tail has the digits
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    start, end = ndtr(a), ndtr(b)
    value = ndtri(start + (end - start) * rng.random(len(mean)))
    value = np.where(flip, -value, value) * spread + mean
    lost = ~np.isfinite(value) | (end - start < 1e-300)
    ends = np.where(np.isfinite(low), low, high), np.where(np.isfinite(high), high, low)
    value = np.where(lost, (ends[0] + ends[1]) / 2, value)
    return np.clip(value, low, high)


def fill_missing(scores: Scores, omega: Array, rng: np.random.Generator | None) -> Array:
    """Draw the scores of missing cells given the row's others (or take the means, without rng)."""
    z = scores.z.copy()
    for columns, rows in scores.patterns:
        gone = np.setdiff1d(np.arange(z.shape[1]), columns)
        if not len(gone):
            continue
        weights, covariance = _regression(omega, gone, columns)
        z[np.ix_(rows, gone)] = z[np.ix_(rows, columns)] @ weights
        if rng is not None:
            noise = rng.standard_normal((len(rows), len(gone)))
            z[np.ix_(rows, gone)] += noise @ np.linalg.cholesky(covariance).T
    nobody = np.flatnonzero(np.isnan(z[:, 0]))  # samples of which no column is observed
    z[nobody] = 0.0
    if rng is not None:
        z[nobody] = rng.standard_normal((len(nobody), z.shape[1])) @ np.linalg.cholesky(omega).T
    return z


def second_moments(scores: Scores, omega: Array) -> Array:
    """Return expected second moments of complete scores as a correlation matrix (an EM step).

    Iterating it to a fixed point is what Algorithm 3 does by drawing missing values and ranking
    again; expectations spare the randomness.
    """
    z = fill_missing(scores, omega, None)
    total = z.T @ z
    for columns, rows in scores.patterns:
        gone = np.setdiff1d(np.arange(z.shape[1]), columns)
        if len(gone):
            total[np.ix_(gone, gone)] += len(rows) * _regression(omega, gone, columns)[1]
    scale = np.sqrt(np.diag(total))
    found: Array = total / np.outer(scale, scale)
    return found


def _regression(omega: Array, gone: Integers, seen: Integers) -> tuple[Array, Array]:
    """Weights of the seen columns for the missing ones, and the covariance that is left."""
    cross = omega[np.ix_(seen, gone)]
    weights: Array = np.linalg.solve(omega[np.ix_(seen, seen)], cross).astype(np.float64)
    covariance = omega[np.ix_(gone, gone)] - cross.T @ weights
    return weights, (covariance + covariance.T) / 2 + 1e-10 * np.eye(len(gone))


_Precision = tuple[Integers, Integers, Array]


def _precisions(scores: Scores, omega: Array) -> list[_Precision]:
    return [
        (columns, rows, np.linalg.inv(omega[np.ix_(columns, columns)]).astype(np.float64))
        for columns, rows in scores.patterns
    ]


def _conditional(scores: Scores, precisions: list[_Precision], j: int) -> tuple[Array, Array]:
    """Mean and standard deviation of column j given each row's other scores, by sample."""
    mean, spread = np.zeros(len(scores.z)), np.ones(len(scores.z))
    for columns, rows, precision in _with(precisions, j):
        own = int(np.searchsorted(columns, j))
        weights = -precision[own] / precision[own, own]
        weights[own] = 0.0
        mean[rows] = scores.z[np.ix_(rows, columns)] @ weights
        spread[rows] = 1 / np.sqrt(precision[own, own])
    return mean, spread


def _with(precisions: list[_Precision], j: int) -> Iterator[_Precision]:
    for columns, rows, precision in precisions:
        if j in columns:
            yield columns, rows, precision
