"""The server's numerics: from everybody's perturbed ranks to a correlation matrix and new latents.

Tang, Feng, Li and Wang, Algorithm 1 (lines 6 to 9) and Algorithm 2 (line 21).
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from flwr_vertical.arrays import Array, Integers
from strategies.copula.correlation import Observed, RankCorrelations, least_eigenvalue
from strategies.copula.nominal import Feature, Nominal, assign_levels, fit_blocks, indicator_gap
from strategies.copula.rank_to_normal import (
    latent_correlations,
    rank_coefficients,
    score_coefficients,
    tied_scores,
)
from strategies.copula.scores import Scores, draw_scores, start_scores

_LEAST = 0.05  # of what noise leaves


def latent_matrix(correlations: RankCorrelations, observed: Observed) -> Array:
    """Return the covariance matrix of the latents, array of shape (d, d)."""
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
    n_joint: Integers,
    features: Sequence[Feature],
    rows: float,
) -> Array:
    """Return latents' covariances given correlations of what is observed, array of shape (d, d)."""
    ordinary = [f for f in features if f.series is not None]
    at = [f.at.start for f in ordinary]
    start = np.eye(len(found))
    if ordinary:
        coefficients = np.array([f.series for f in ordinary])
        start[np.ix_(at, at)] = latent_correlations(found[np.ix_(at, at)], coefficients)
    variances = np.outer(noise, signal) + np.outer(signal, noise) + np.outer(noise, noise)
    least = least_eigenvalue(len(found), rows)
    return fit_blocks(start, found, variances / n_joint, features, least)


def observed_scores(observed: Observed, rng: np.random.Generator) -> Scores:
    """Return the scores of perturbed ranks, and how much these tell of the latents."""
    errors = (np.sqrt(observed.noise) / observed.n).tolist()
    ties: list[Array | None] = []
    kept: list[float] = []
    for j, (place, width) in enumerate(zip(observed.places, observed.widths, strict=True)):
        if width > 1:
            shares = observed.shares(j)
            ties += [np.array([1 - share]) for share in shares]
            kept += [
                indicator_gap(p, e) * max(p * (1 - p), 0.0) ** 0.5
                for p, e in zip(shares.tolist(), errors[place], strict=True)
            ]
        else:
            cuts = observed.cuts[j]
            ties.append(cuts)
            spread = float(tied_scores(cuts).std())
            kept.append(score_coefficients(cuts, errors[place.start])[0] / max(spread, _LEAST))
    return start_scores(observed.ranks, ties, np.clip(kept, _LEAST, 1.0), rng)


def latent_from_scores(
    matrix: Array, observed: Observed, scores: Scores, n_joint: Integers
) -> Array:
    """Return the latents' covariance matrix given that of normal scores, shape (d, d).

    Shapes: matrix (d, d): correlations of normal scores of perturbed ranks; n_joint (d, d): how
    many rows have both.
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
    return np.asarray(found / found.sum())


def draw_latents(omega: Array, rows: int, rng: np.random.Generator) -> Array:
    """Draw rows of the normal distribution with a covariance matrix, array of shape (rows, p)."""
    return rng.standard_normal((rows, len(omega))) @ np.linalg.cholesky(omega).T


def spread_evenly(latents: Array, rng: np.random.Generator) -> Array:
    """Return latents as probabilities of their margin, one in each of m equal parts of [0, 1].

    Drawn independently, m rows would have margins that differ from those that they are drawn from
    by some 0.9 / sqrt(m) (Kolmogorov and Smirnov's distance). Their order is kept, so that rank
    correlations are, too.
    """
    parts = latents.argsort(axis=0).argsort(axis=0)
    return np.asarray((parts + rng.random(latents.shape)) / len(latents))


def fresh_levels(
    omega: Array,
    observed: Observed,
    rows: int,
    rng: np.random.Generator,
    scores: Scores | None = None,
) -> Array:
    """Draw rows as shares of each column's observed values, given latents' covariance, (d, d)."""
    latents = draw_latents(omega, rows, rng)
    return _by_column(latents, spread_evenly(latents, rng), observed, rng, scores)


def following_levels(
    scores: Scores, matrix: Array, observed: Observed, rows: int, rng: np.random.Generator
) -> Array:
    """Make synthetic rows that follow the ranks of real ones, in a random order; (rows, p)."""
    copies = -(-rows // len(scores.z))
    drawn = np.vstack([draw_scores(scores, matrix, rng) for _ in range(copies)])
    drawn = drawn[rng.permutation(len(drawn))[:rows]]
    return _by_column(drawn, np.asarray(ndtr(drawn)), observed, rng, scores)


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
