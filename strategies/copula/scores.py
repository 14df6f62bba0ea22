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

Equal values are ranked in random order, and noise is in all ranks. So a rank tells of its latent by
a score, the mean where values are equal (`tied_scores`), whose correlation with the latent is g
below 1. Correlations R are those of these scores, on which rows are conditioned; a latent has 1 / g
times their covariances with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.linalg import solve_triangular
from scipy.special import ndtr, ndtri

from flwr_vertical.arrays import Array, Integers, Integers32
from strategies.copula.correlation import nearest_correlation
from strategies.copula.rank_to_normal import N_SHARES, tied_scores

_STEP = 0.1
_GRID = _STEP * np.arange(-55, 56)
_CELLS = 20  # in a standard deviation, by which rows are counted
_ALIKE = 0.02  # standard deviations that differ by so little are one
_NOTHING = 1e-9
_LEAST_VARIANCE = 0.25  # of scores, where rows that both columns have are alike
_LEAST_SHARE = 1e-8
_PASSES = 3  # by which shares of levels settle
_LARGEST = 0.95  # correlation of two columns, at first
_EXPLAINED = 0.98  # of a latent's variance, by those of other columns


@dataclass
class Scores:
    """Latent scores of all samples."""

    z: Array  # (n_samples, p): naN where a sample lacks the column
    # (n_j,): for each column, the samples that have it, in the order of their perturbed ranks
    order: list[Integers]
    # (columns, rows): columns that are observed together, and the samples where just these are
    patterns: list[tuple[Integers, Integers]]
    # (p,): where equal values begin and end, as for `score_coefficients`
    ties: Sequence[Array | None]
    # (p,): what noise leaves of the correlations of latents with what ranks tell
    kept: Array

    def told(self, j: int) -> Array:
        """Return what ranks tell of the latents of column j, (n_samples,): see `tied_scores`."""
        ties, z = self.ties[j], self.z[:, j]
        if ties is None:
            return z
        seen = ~np.isnan(z)
        found = np.full(len(z), np.nan)
        of_share = tied_scores(self.probability(j, ties))
        found[seen] = of_share[(ndtr(z[seen]) * N_SHARES).astype(np.int64)]
        return found / max(float(of_share.std()), _NOTHING)

    def correlations(self) -> Array:
        """Return correlations of what ranks tell, pair by pair over the rows that both have."""
        told = np.column_stack([self.told(j) for j in range(len(self.ties))])
        seen = ~np.isnan(told)
        mask, filled = seen.astype(np.float64), np.where(seen, told, 0.0)
        joint = np.maximum(mask.T @ mask, 2.0)
        means = filled.T @ mask / joint  # [j, l]: of column j over the rows that l has
        own = np.maximum((filled**2).T @ mask / joint - means**2, _LEAST_VARIANCE)
        covariance = filled.T @ filled / joint - means * means.T
        # What decides which rows are seen changes variances, but not a regression on it: that of
        # the column with fewer rows on the other holds in all rows (Pearson, Lawley). There the
        # variance of levels is 1 by their map, which these correlations are to be found with again.
        slopes = covariance / own.T
        variance = np.maximum(own + slopes**2 * (1 - own.T), _LEAST_VARIANCE)
        levels = np.array([ties is not None for ties in self.ties])[:, None]
        found = np.clip(slopes / np.sqrt(np.where(levels, 1.0, variance)), -_LARGEST, _LARGEST)
        found = np.where(np.diag(joint)[:, None] <= np.diag(joint), found, found.T)
        np.fill_diagonal(found, 1.0)
        return np.asarray(found)

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


def start_scores(
    ranks: Integers32, ties: Sequence[Array | None], kept: Array, rng: np.random.Generator
) -> Scores:
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
    patterns = [(columns, rows) for columns, rows in patterns if len(columns)]
    return Scores(z, order, patterns, ties, kept)


def fit_maps(scores: Scores, omega: Array) -> None:
    """Solve for each column's function h in place, given R, (p, p)."""
    chain = _Chain(scores, omega)
    for j in chain.columns:
        rows = scores.order[j]
        if len(rows) < len(scores.z):  # else what is observed is the whole
            _fit_map(scores, j, *chain.predicted(j))
        chain.condition_on(j, scores.told(j))


def _fit_map(scores: Scores, j: int, mean: Array, spread: Array) -> None:
    """Solve for h of column j, given what other columns say of its scores, (n_samples,) each."""
    told, rows = 1 - spread**2, scores.order[j]
    scale = np.full(len(mean), 1 / scores.kept[j])  # from what ranks tell to the latent
    # Of all rows, of those that have the column, and by how much others say more than on average.
    weights = np.zeros((len(mean), 3))
    weights[:, 0], weights[rows, 1] = 1 / len(mean), 1 / len(rows)
    weights[:, 2] = mean - mean.mean()
    for _ in range(1 if scores.ties[j] is None else _PASSES):
        scale = np.minimum(scale, np.sqrt(_EXPLAINED / np.maximum(told, _NOTHING)))
        below = _sums_below(mean * scale, np.sqrt(1 - told * scale**2), weights)
        rising = below + 1e-9 * _GRID[:, None]  # at the ends, too
        wanted = np.interp(middles(len(rows)), rising[:, 1], _GRID)
        # Latents of all rows are normal, but their means need not be, of levels least of all.
        share = np.interp(wanted, _GRID, rising[:, 0])
        scores.z[rows, j] = ndtri(np.clip(share, _LEAST_SHARE, 1 - _LEAST_SHARE))
        if scores.ties[j] is not None:
            # Levels must follow from what others say as much as they do, however strongly: the
            # sum over rows of weight times expected score, which rises at points of the grid.
            of_levels = np.interp((_GRID[1:] + _GRID[:-1]) / 2, wanted, scores.told(j)[rows])
            follows = -float(np.diff(of_levels) @ below[1:-1, 2]) * scores.kept[j]
            if follows > 0:
                scale = scale * float(weights[:, 2] @ weights[:, 2]) / follows


def _sums_below(mean: Array, spread: Array, weights: Array) -> Array:
    """Return the sums over rows of weights times probabilities to lie below points of the grid.

    Rows of one spread are counted in cells that are small beside it. The points are cells apart,
    so few distances, and few probabilities, are among all points and cells. No spread is below
    the root of what `_EXPLAINED` leaves, 0.14.

    Shapes: mean and spread (n,), weights (n, k); returns (n_points, k). Errors are below 1e-4 of
    the sum of absolute weights.
    """
    found = np.zeros((len(_GRID), weights.shape[1]))
    _, group = np.unique(np.rint(np.log(spread) / _ALIKE), return_inverse=True)
    for rows in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]):
        deviation = float(spread[rows].mean())
        cells = math.ceil(_CELLS * _STEP / deviation)  # in a step of the grid
        width = _STEP / cells
        at = np.clip(mean[rows], _GRID[0] - 9 * deviation, _GRID[-1] + 9 * deviation) / width
        first = math.floor(at.min())
        cell = (at - first).astype(np.int64)
        n_cells, after = int(cell.max()) + 2, at - first - cell
        held = weights[rows] * (1 - after)[:, None], weights[rows] * after[:, None]
        sums = np.zeros((n_cells, weights.shape[1]))
        for k in range(weights.shape[1]):
            sums[:, k] = np.bincount(cell, held[0][:, k], n_cells)
            sums[:, k] += np.bincount(cell + 1, held[1][:, k], n_cells)
        # From the lowest point less the highest cell upwards.
        lowest = round(_GRID[0] / width) - (first + n_cells - 1)
        apart = lowest + np.arange((len(_GRID) - 1) * cells + n_cells)
        below = sliding_window_view(ndtr(apart * (width / deviation)), n_cells)[::cells]
        found += below @ sums[::-1]
    return found


def draw_scores(scores: Scores, omega: Array, rng: np.random.Generator) -> Array:
    """Redraw each score between its neighbours in rank, then those of missing cells.

    The truncated normal sweep of Algorithm 2 (lines 10 to 15): a score's neighbours are those of
    the next lower and the next higher rank (2.8), so all even ranks can be drawn at once, and then
    all odd ones.

    Shapes: returns (n_samples, p): complete.
    """
    drawn = replace(scores, z=scores.z.copy())
    chain = _Chain(drawn, omega)
    for j in chain.columns:
        rows = drawn.order[j]
        mean, spread = chain.conditional(j)
        drawn.z[rows, j] = _sweep(drawn.z[rows, j], mean[rows], spread[rows], rng)
        chain.condition_on(j, drawn.z[:, j])
    return fill_missing(drawn.z, scores.patterns, omega, rng)


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


def fill_missing(
    z: Array,
    patterns: list[tuple[Integers, Integers]],
    omega: Array,
    rng: np.random.Generator | None,
) -> Array:
    """Draw the scores of missing cells given the row's others (or take the means, without rng)."""
    z = z.copy()
    for columns, rows in patterns:
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


def second_moments(scores: Scores, omega: Array, least: float) -> Array:
    """Return expected second moments of complete scores as correlations (an EM step)."""
    told = np.column_stack([scores.told(j) for j in range(len(omega))])
    z = fill_missing(told, scores.patterns, omega, None)
    total = z.T @ z
    for columns, rows in scores.patterns:
        gone = np.setdiff1d(np.arange(z.shape[1]), columns)
        if len(gone):
            total[np.ix_(gone, gone)] += len(rows) * _regression(omega, gone, columns)[1]
    # Variances are 1 by the maps; those of levels that are rarer among what is seen are smaller.
    total /= len(z)
    np.fill_diagonal(total, 1.0)
    return nearest_correlation(total, least)


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
        patterns = sorted(scores.patterns, key=lambda pattern: int(pattern[1][0]))
        unseen = [~np.isin(np.arange(len(counts)), columns) for columns, _ in patterns]
        _, block = np.unique(unseen, axis=1, return_inverse=True)
        order = np.lexsort((block, -counts))
        self.columns: list[int] = order.tolist()
        # Columns that the same rows have: none decides whether another is seen.
        blocks = block[order].tolist()
        self._before = {
            j: order[: blocks.index(b)] for j, b in zip(self.columns, blocks, strict=True)
        }
        self._omega = omega
        self._n_samples = len(scores.z)
        self._parts: list[_Part] = []
        for columns, rows in scores.patterns:
            own = order[np.isin(order, columns)]
            factor: Array = np.linalg.cholesky(omega[np.ix_(own, own)]).astype(np.float64)
            place = {int(column): position for position, column in enumerate(own)}
            self._parts.append(_Part(rows, place, factor, np.zeros((len(rows), len(own)))))

    def conditional(self, j: int) -> tuple[Array, Array]:
        """Return mean and standard deviation of column j, by sample that has it."""
        mean, spread = np.zeros(self._n_samples), np.ones(self._n_samples)
        for part in self._parts:
            if (at := part.place.get(j)) is not None:
                mean[part.rows] = part.innovations[:, :at] @ part.factor[at, :at]
                spread[part.rows] = part.factor[at, at]
        return mean, spread

    def predicted(self, j: int) -> tuple[Array, Array]:
        """Return mean and standard deviation of column j given columns that other rows have."""
        mean, spread = np.zeros(self._n_samples), np.ones(self._n_samples)
        for part in self._parts:
            own = [k for k in self._before[j] if k in part.place]
            n = len(own)
            cross = self._omega[own, j]
            weights = solve_triangular(part.factor[:n, :n], cross, lower=True)
            mean[part.rows] = part.innovations[:, :n] @ weights
            spread[part.rows] = np.sqrt(max(1 - float(weights @ weights), _NOTHING))
        return mean, spread

    def condition_on(self, j: int, z: Array) -> None:
        """Let the columns after j know its scores, (n_samples,)."""
        for part in self._parts:
            if (at := part.place.get(j)) is not None:
                mean = part.innovations[:, :at] @ part.factor[at, :at]
                part.innovations[:, at] = (z[part.rows] - mean) / part.factor[at, at]


@dataclass(frozen=True)
class _Part:
    """A missingness pattern: samples, places of columns, their factor, and what is known."""

    rows: Integers
    place: dict[int, int]
    factor: Array
    innovations: Array
