"""Latent scores of perturbed ranks, where rows are missing depending on what others show.

Tang, Feng, Li and Wang, section 2.4. Their margin (2.6) at the reordered values (2.7) is

    F~(m-th smallest observed value) = Phi(m-th smallest latent score Z'),

that is, F~ = H(F_observed) with H(m / n) = Phi(Z'_(m)). H needs perturbed ranks only. So it is
computed here, by the server, from what was released already; the holder's part stays the observed
margin, with its exact sensitivity 1 / n, and no further round is needed.

The scores of a column are an increasing function h of its perturbed ranks. The paper sorts a normal
sample in their order and redraws each score between its neighbours (2.8), which moves it by
O(1 / n) a sweep. Here the function is solved for first. Columns are gone through from the most to
the least observed one (Algorithm 2 begins with the labels, which all samples have), each given the
earlier ones that a row has, mu_i and s_i being mean and standard deviation: if these decide what is
observed of the column,

    m = sum over observed i of 1{rank_i <= m}  and  sum over observed i of Phi((h(m) - mu_i) / s_i)

have the same expectation (missing at random), and the latter increases in h. To condition on later
columns, too, would be wrong: that a row has them may depend on this one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from flwr_vertical.arrays import Array, Integers

_GRID = np.linspace(-5.5, 5.5, 111)
_MOST_ROWS = 4000  # conditional means enter H as a sample of at most so many


@dataclass
class Scores:
    """Latent scores of all samples."""

    z: Array  # (n_samples, p): naN where a sample lacks the column
    # (n_j,): for each column, the samples that have it, in the order of their perturbed ranks
    order: list[Integers]
    # (columns, rows): columns that are observed together, and the samples where just these are
    patterns: list[tuple[Integers, Integers]]

    def observed_share(self, j: int, probability: Array) -> Array:
        """Return the inverse of H of column j: how many of the observed lie below a quantile."""
        shares, values = self._map(j)
        return np.asarray(np.interp(probability, values, shares))

    def probability(self, j: int, share: Array) -> Array:
        """Return H of column j: the quantile that has a share of the observed below it."""
        shares, values = self._map(j)
        return np.asarray(np.interp(share, shares, values))

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
    """Give perturbed ranks, (n_samples, p), 0 = missing, their normal scores."""
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


def fit_maps(scores: Scores, omega: Array) -> None:
    """Solve for each column's function h in place, given the scores' correlations, (p, p)."""
    chain = _Chain(scores, omega)
    for j in chain.columns:
        rows = scores.order[j]
        if len(rows) < len(scores.z):  # else what is observed is the whole
            mean, spread = chain.conditional(j)
            mean, spread = mean[rows], spread[rows]
            # The sum over rows changes slowly with them, so a systematic sample is enough.
            kept = np.arange(0, len(rows), -(-len(rows) // _MOST_ROWS))
            share = np.zeros(len(_GRID))
            for block in np.array_split(kept, 4):
                share += ndtr((_GRID - mean[block, None]) / spread[block, None]).sum(axis=0)
            share = share / len(kept) + 1e-9 * _GRID  # increasing at the ends, too
            scores.z[rows, j] = np.interp(middles(len(rows)), share, _GRID)
        chain.condition_on(j, scores.z)


def draw_scores(scores: Scores, omega: Array, rng: np.random.Generator) -> Array:
    """Redraw each score between its neighbours in rank, then those of missing cells.

    The truncated normal sweep of Algorithm 2 (lines 10 to 15): a score's neighbours are those of
    the next lower and the next higher rank (2.8), so all even ranks can be drawn at once, and then
    all odd ones.

    Shapes: returns (n_samples, p): complete.
    """
    drawn = Scores(scores.z.copy(), scores.order, scores.patterns)
    chain = _Chain(drawn, omega)
    for j in chain.columns:
        rows = drawn.order[j]
        mean, spread = chain.conditional(j)
        drawn.z[rows, j] = _sweep(drawn.z[rows, j], mean[rows], spread[rows], rng)
        chain.condition_on(j, drawn.z)
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
    """Return expected second moments of complete scores as correlations (an EM step)."""
    z = fill_missing(scores, omega, None)
    total = z.T @ z
    for columns, rows in scores.patterns:
        gone = np.setdiff1d(np.arange(z.shape[1]), columns)
        if len(gone):
            total[np.ix_(gone, gone)] += len(rows) * _regression(omega, gone, columns)[1]
    scale = np.sqrt(np.diag(total))
    return np.asarray(total / np.outer(scale, scale))


def _regression(omega: Array, gone: Integers, seen: Integers) -> tuple[Array, Array]:
    """Weights of the seen columns for the missing ones, and the covariance that is left."""
    cross = omega[np.ix_(seen, gone)]
    weights: Array = np.linalg.solve(omega[np.ix_(seen, seen)], cross).astype(np.float64)
    covariance = omega[np.ix_(gone, gone)] - cross.T @ weights
    return weights, (covariance + covariance.T) / 2 + 1e-10 * np.eye(len(gone))


class _Chain:
    """Mean and spread of each column given those before it that the row has.

    With L the Cholesky factor of a pattern's correlations, its columns in order, the scores are L e
    for independent e: the mean of the next column is its row of L times the e known so far.
    """

    def __init__(self, scores: Scores, omega: Array) -> None:
        counts = np.array([len(rows) for rows in scores.order])
        order = np.argsort(-counts, kind="stable")
        self.columns: list[int] = order.tolist()
        self._n_samples = len(scores.z)
        self._parts: list[_Part] = []
        for columns, rows in scores.patterns:
            own = order[np.isin(order, columns)]
            factor: Array = np.linalg.cholesky(omega[np.ix_(own, own)]).astype(np.float64)
            place = {int(column): position for position, column in enumerate(own)}
            self._parts.append(_Part(rows, place, factor, np.zeros((len(rows), len(own)))))

    def conditional(self, j: int) -> tuple[Array, Array]:
        """Return mean and standard deviation of column j, by sample."""
        mean, spread = np.zeros(self._n_samples), np.ones(self._n_samples)
        for part in self._parts:
            if (at := part.place.get(j)) is not None:
                mean[part.rows] = part.innovations[:, :at] @ part.factor[at, :at]
                spread[part.rows] = part.factor[at, at]
        return mean, spread

    def condition_on(self, j: int, z: Array) -> None:
        """Let the columns after j know its scores."""
        for part in self._parts:
            if (at := part.place.get(j)) is not None:
                mean = part.innovations[:, :at] @ part.factor[at, :at]
                part.innovations[:, at] = (z[part.rows, j] - mean) / part.factor[at, at]


@dataclass(frozen=True)
class _Part:
    """A missingness pattern: samples, places of columns, their factor, and what is known."""

    rows: Integers
    place: dict[int, int]
    factor: Array
    innovations: Array
