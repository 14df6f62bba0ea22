"""The server's numerics: from everybody's perturbed ranks to a correlation matrix and new latents.

Tang, Feng, Li and Wang, Algorithm 1 (lines 6 to 9) and Algorithm 2 (line 21).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import rankdata

from flwr_vertical.errors import DataError
from strategies.synthesis.copula.bridge import (
    latent_correlations,
    rank_coefficients,
    score_coefficients,
)
from strategies.synthesis.copula.correlation import (
    RankCorrelations,
    from_spearman,
    least_eigenvalue,
    nearest_correlation,
    rank_correlations,
)
from strategies.synthesis.copula.nominal import (
    Feature,
    Nominal,
    assign_levels,
    fit_blocks,
    indicator_gap,
)
from strategies.synthesis.copula.ranks import Flip
from strategies.synthesis.copula.scores import Scores, draw_scores

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Observed:
    """All columns as the server knows them.

    Parameters
    ----------
    ranks : numpy.ndarray of shape (n_samples, d), int32
        Perturbed ranks, 0 where a sample lacks the column. The labels come first, if there are any.
        A nominal column may have one for each level, any other has one.
    flips : sequence of Flip
        One for each of p columns: what comparisons of its values spend.
    cuts : sequence of (array of shape (n_levels - 1,) or (n_atoms, 2), or None)
        Noisy shares of columns of levels; of numeric columns, where point masses begin and end.
    owners : sequence of str
        Whose column it is.
    widths : sequence of int
        How many ranks each column has.
    """

    ranks: npt.NDArray[np.int32]
    flips: Sequence[Flip]
    cuts: Sequence[Array | None]
    owners: Sequence[str]
    widths: Sequence[int]

    @property
    def places(self) -> list[slice]:
        """Of each column, where its ranks are among all."""
        ends = np.cumsum([0, *self.widths]).tolist()
        return [slice(first, after) for first, after in pairwise(ends)]

    @property
    def of_rank(self) -> npt.NDArray[np.int64]:
        """Number of the column that each of the d ranks is of, array of shape (d,)."""
        return np.repeat(np.arange(len(self.widths)), self.widths)

    @property
    def indicators(self) -> npt.NDArray[np.bool_]:
        """Which ranks are of the level of a nominal column, array of shape (d,)."""
        return np.repeat(np.asarray(self.widths) > 1, self.widths)

    @property
    def n(self) -> npt.NDArray[np.int64]:
        """How many samples have each rank, array of shape (d,)."""
        return np.asarray(np.count_nonzero(self.ranks, axis=0), dtype=np.int64)

    @property
    def rank_flips(self) -> list[Flip]:
        """The chance of a comparison to be turned round, of each of the d ranks."""
        flips = [f if w == 1 else f.of_indicators for f, w in zip(self.flips, self.widths)]
        return [flips[column] for column in self.of_rank]

    def shares(self, column: int) -> Array:
        """Noisy shares of the levels of a nominal column, array of shape (n_levels,)."""
        cuts = self.cuts[column]
        assert cuts is not None
        return np.diff(cuts, prepend=0.0, append=1.0)

    @property
    def signal(self) -> Array:
        """Variance of what ranks without noise are expected to be, array of shape (d,).

        As a share of n^2 / 12, which is that of n values without ties.
        """
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
    ordered = observed.ranks.astype(np.float64)
    for j, (flip, n) in enumerate(zip(observed.rank_flips, observed.n, strict=True)):
        seen = observed.ranks[:, j] > 0
        scores[seen, j] = flip.debias(observed.ranks[seen, j], int(n))
        ordered[~seen, j] = np.nan
        if observed.indicators[j]:  # these gather around two values
            ordered[seen, j] = rankdata(ordered[seen, j])
    found = rank_correlations(scores, observed.noise, observed.indicators)
    if observed.indicators.any():
        centred = ordered - np.nanmean(ordered, axis=0)
        raw = rank_correlations(centred, np.zeros(len(observed.noise))).raw
        found = replace(found, raw=raw)
    return found


def check_joint(correlations: RankCorrelations, observed: Observed, least: int) -> int:
    """Return the smallest number of rows that two columns share, or raise if it is too small."""
    joint = correlations.n_joint
    j, k = divmod(int(joint.argmin()), len(joint))
    owners = [observed.owners[column] for column in observed.of_rank]
    if joint[j, k] < least:
        pair = f"{owners[j]!r} and {owners[k]!r}" if j != k else f"{owners[j]!r} alone"
        raise DataError(
            f"only {joint[j, k]} rows have the columns of {pair} jointly observed, but min_joint = "
            f"{least} are asked for to estimate a correlation; align other rows, leave a party "
            "out, or set min_joint lower"
        )
    return int(joint[j, k])


def latent_matrix(correlations: RankCorrelations, observed: Observed) -> Array:
    """Return the correlation matrix of the latents, array of shape (d, d)."""
    features = [
        Feature(place, nominal=Nominal.of(observed.shares(j)), scale=np.full(width, 3**0.5))
        if width > 1
        else Feature(place, series=rank_coefficients(observed.cuts[j]))
        for j, (place, width) in enumerate(zip(observed.places, observed.widths, strict=True))
    ]
    noise = observed.noise * 12 / observed.n**2
    least = float(correlations.n_joint.min())
    return _solve(
        correlations.debiased, observed.signal, noise, correlations.n_joint, features, least
    )


def _solve(
    found: Array,
    signal: Array,
    noise: Array,
    n_joint: npt.NDArray[np.int64],
    features: Sequence[Feature],
    rows: float,
) -> Array:
    """Return latents' correlations given those of what is observed, array of shape (d, d)."""
    ordinary = [f for f in features if f.series is not None]
    at = [f.at.start for f in ordinary]
    start = np.eye(len(found))
    if ordinary:
        coefficients = np.array([f.series for f in ordinary])
        start[np.ix_(at, at)] = latent_correlations(found[np.ix_(at, at)], coefficients)
    variances = np.outer(noise, signal) + np.outer(signal, noise) + np.outer(noise, noise)
    least = least_eigenvalue(len(found), rows)
    return fit_blocks(start, found, variances / n_joint, features, least)


def score_matrix(correlations: RankCorrelations) -> Array:
    """Return the correlation matrix of the perturbed ranks' normal scores, shape (p, p).

    Nearer to the identity than that of the latents: noise, and levels' random order, are in it.
    """
    return nearest_correlation(from_spearman(correlations.raw))


def latent_from_scores(
    matrix: Array, observed: Observed, scores: Scores, n_joint: npt.NDArray[np.int64]
) -> Array:
    """Return the latents' correlation matrix given that of normal scores, shape (d, d).

    Parameters
    ----------
    matrix : numpy.ndarray of shape (d, d)
        Correlations of normal scores of perturbed ranks.
    observed : Observed
        Tells how noisy the ranks are.
    scores : Scores
        Correct shares of levels and of point masses for what is missing.
    n_joint : numpy.ndarray of shape (d, d), int64
        How many rows have both.
    """
    errors = (np.sqrt(observed.noise) / observed.n).tolist()
    features, signal = [], np.ones(len(matrix))
    for j, (place, width) in enumerate(zip(observed.places, observed.widths, strict=True)):
        if width > 1:
            shares = corrected_shares(scores, observed, j)
            gaps = np.array(
                [indicator_gap(p, e) for p, e in zip(shares, errors[place], strict=True)]
            )
            features.append(Feature(place, nominal=Nominal.of(shares), scale=gaps))
            signal[place] = gaps**2 * shares * (1 - shares)
        else:
            cuts = observed.cuts[j]
            corrected = None if cuts is None else scores.probability(place.start, cuts)
            series = score_coefficients(corrected, errors[place.start])
            features.append(Feature(place, series=series))
            signal[place] = (series**2).sum()
    rows = float(observed.n.min())
    return _solve(matrix, signal, np.maximum(1 - signal, 0.0), n_joint, features, rows)


def corrected_shares(scores: Scores, observed: Observed, column: int) -> Array:
    """Return the shares of a nominal column's levels in all rows, array of shape (n_levels,)."""
    place, shares = observed.places[column], observed.shares(column)
    found = np.array(
        [
            1 - scores.probability(place.start + a, np.array([1 - share]))[0]
            for a, share in enumerate(shares)
        ]
    )
    found[shares <= 0] = 0.0
    corrected: Array = found / found.sum()
    return corrected


def draw_latents(omega: Array, rows: int, rng: np.random.Generator) -> Array:
    """Draw rows of the normal distribution with a correlation matrix, array of shape (rows, p)."""
    return rng.standard_normal((rows, len(omega))) @ np.linalg.cholesky(omega).T


def spread_evenly(latents: Array, rng: np.random.Generator) -> Array:
    """Return latents as probabilities of their margin, one in each of m equal parts of [0, 1].

    Drawn independently, m rows would have margins that differ from those that they are drawn from
    by some 0.9 / sqrt(m) (Kolmogorov and Smirnov's distance). Their order is kept, so that rank
    correlations are, too.
    """
    rows = len(latents)
    parts = latents.argsort(axis=0).argsort(axis=0)
    levels: Array = (parts + rng.random(latents.shape)) / rows
    return levels


def probabilities(latents: Array) -> Array:
    """Return latents as probabilities of their margin."""
    levels: Array = ndtr(latents)
    return levels


def fresh_levels(
    omega: Array,
    observed: Observed,
    rows: int,
    rng: np.random.Generator,
    scores: Scores | None = None,
) -> Array:
    """Draw synthetic rows as shares of each column's *observed* values.

    Parameters
    ----------
    omega : numpy.ndarray of shape (d, d)
        Correlation matrix of latents.
    observed : Observed
        Has the shares of levels.
    rows : int
        How many.
    rng : numpy.random.Generator
        Simulation randomness.
    scores : Scores, optional
        Carry the margins' correction H.

    Returns
    -------
    numpy.ndarray of shape (rows, p)
    """
    latents = draw_latents(omega, rows, rng)
    even = spread_evenly(latents, rng)
    return _by_column(latents, even, observed, rng, scores)


def following_levels(
    scores: Scores, matrix: Array, observed: Observed, rows: int, rng: np.random.Generator
) -> Array:
    """Make synthetic rows that follow the ranks of real ones, in a random order.

    Parameters
    ----------
    scores : Scores
        Of the real rows; carry the margins' correction H.
    matrix : numpy.ndarray of shape (d, d)
        Their correlations.
    observed, rows, rng
        As of `fresh_levels`.

    Returns
    -------
    numpy.ndarray of shape (rows, p)
    """
    copies = -(-rows // len(scores.z))
    drawn = np.vstack([draw_scores(scores, matrix, rng) for _ in range(copies)])
    drawn = drawn[rng.permutation(len(drawn))[:rows]]
    return _by_column(drawn, probabilities(drawn), observed, rng, scores)


def _by_column(
    latents: Array,
    levels: Array,
    observed: Observed,
    rng: np.random.Generator,
    scores: Scores | None,
) -> Array:
    """Return one share for each row and column, array of shape (rows, p)."""
    found = np.empty((len(latents), len(observed.widths)))
    for j, (place, width) in enumerate(zip(observed.places, observed.widths, strict=True)):
        if width > 1:
            own = observed.shares(j)
            wanted = own if scores is None else corrected_shares(scores, observed, j)
            level = assign_levels(latents[:, place], wanted, rng)
            # The owner's margin has this level there.
            found[:, j] = (np.cumsum(own) - own / 2)[level]
        elif scores is None:
            found[:, j] = levels[:, place.start]
        else:
            found[:, j] = scores.observed_share(place.start, levels[:, place.start])
    return found
