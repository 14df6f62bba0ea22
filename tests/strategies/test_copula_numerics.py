"""Ranks, margins, correlations and scores against their literal equations, and by moments."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import copula as oracle
from oracles.copula import dense_flips
from scipy.stats import norm, spearmanr, truncnorm

from flwr_vertical.errors import ConfigError
from flwr_vertical.privacy import Keystream
from flwr_vertical.tables import Kind
from strategies.copula import histogram_cdf
from strategies.copula import scores as scores_module
from strategies.copula.correlation import nearest_correlation, rank_correlations
from strategies.copula.margins import (
    Margin,
    bernstein,
    continuous_margin,
    discrete_margin,
    noisy_counts,
)
from strategies.copula.rank_to_normal import (
    latent_correlations,
    rank_coefficients,
    score_coefficients,
    tied_scores,
)
from strategies.copula.ranks import Flip, flip_sums, perturbed_ranks
from strategies.copula.release import likely_value, with_filled
from strategies.copula.scores import (
    draw_scores,
    fit_maps,
    second_moments,
    start_scores,
    truncated_normal,
)

KEY = b"sixteen bytes ok"
INF = float("inf")


# -- ranks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 255, 256, 257, 4200])
def test_counted_tiles_are_row_and_column_sums(n):
    flip = Flip.of(1.0)
    dense = dense_flips(n, flip, Keystream(KEY))
    rows, columns = flip_sums(n, flip, Keystream(KEY))
    np.testing.assert_array_equal(rows, dense.sum(axis=1))
    np.testing.assert_array_equal(columns, dense.sum(axis=0))
    pairs = n * (n - 1) / 2
    assert abs(dense.sum() - flip.theta * pairs) <= 5 * np.sqrt(pairs) / 2


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_ranks_are_those_of_the_literal_comparisons(epsilon):
    rng, n = np.random.default_rng(0), 60
    values = rng.integers(0, 12, size=n).astype(float)  # many ties
    flip = Flip.of(epsilon)
    ranks = perturbed_ranks(values, flip, Keystream(KEY))
    # The same noise, as the oracle wants it: per pair of samples.
    stream, ties = Keystream(KEY), np.empty(n, dtype=int)
    ties[stream.shuffled(n)] = np.arange(n)
    dense = dense_flips(n, flip, stream)
    place = np.lexsort((ties, values)).argsort()
    expected, debiased = oracle.perturb(
        oracle.comparisons(values, ties),
        lambda i, k: dense[max(place[i], place[k]), min(place[i], place[k])],
        flip.theta,
    )
    np.testing.assert_array_equal(ranks, expected)
    np.testing.assert_allclose(flip.debias(ranks, n) + (n + 1) / 2, debiased, atol=1e-9)


def test_debiased_ranks_are_unbiased_with_the_stated_variance():
    n, runs, flip = 80, 3000, Flip.of(0.7)
    stream, values = Keystream(KEY), np.arange(80.0)
    drawn = np.array([perturbed_ranks(values, flip, stream) for _ in range(runs)])
    assert (drawn.sum(axis=1) == n * (n + 1) // 2).all()  # noise is antisymmetric
    assert len(np.unique(drawn[0])) < n
    debiased = flip.debias(drawn, n) + (n + 1) / 2
    sd = np.sqrt(flip.noise_variance(n))
    assert np.abs(debiased.mean(axis=0) - np.arange(1, n + 1)).max() < 5 * sd / np.sqrt(runs)
    ratio = debiased.var(axis=0) / sd**2
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / runs)
    # Two samples share one comparison: their noise has the correlation -1 / (n - 1).
    pair = np.mean((debiased[:, 0] - 1) * (debiased[:, 40] - 41)) / sd**2
    assert abs(pair + 1 / (n - 1)) < 5 / np.sqrt(runs)


def test_no_noise_gives_the_ranks_and_ties_fall_either_way():
    values = np.array([3.0, 1.0, 2.0])
    assert perturbed_ranks(values, Flip.of(INF), Keystream()).tolist() == [3, 1, 2]
    tied = {tuple(perturbed_ranks([1.0, 1.0], Flip.of(INF), Keystream())) for _ in range(60)}
    assert tied == {(1, 2), (2, 1)}


def test_theta_is_never_less_private_than_asked_for():
    for epsilon in (1e-3, 0.5, 1.0, 5.0, 11.0, 40.0):
        flip = Flip.of(epsilon)
        assert flip.epsilon <= epsilon
        assert flip.theta - 1 / (1 + np.exp(epsilon)) <= 2**-16
    assert Flip.of(INF).theta == 0
    for epsilon in (0.0, -1.0, float("nan"), 1e-6):
        with pytest.raises(ConfigError, match="epsilon"):
            Flip.of(epsilon)


# -- margins ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("l", "h"), [(4, 1), (5, 2), (6, 4)])
def test_bernstein_is_the_operator_as_defined(l, h):  # noqa: E741
    rng = np.random.default_rng(0)
    coefficients = np.sort(rng.random(l + 1))
    literal = oracle.bernstein(lambda x: coefficients[round(x * l)], l, h)
    x = np.linspace(0, 1, 7)
    np.testing.assert_allclose(bernstein(x, coefficients, h), [literal(v) for v in x], atol=1e-10)


@pytest.mark.parametrize("draw", [np.random.Generator.normal, np.random.Generator.exponential])
def test_without_noise_a_margin_converges_to_the_column_s(draw):
    errors = []
    for n in (200, 20_000):
        values = draw(np.random.default_rng(1), size=n)
        margin = continuous_margin(values, values.min(), values.max(), INF, Keystream())
        levels = np.linspace(0.02, 0.98, 49)
        errors.append(np.abs(margin.quantile(levels) - np.quantile(values, levels)).max())
        assert margin.quantile([0.0, 1.0]) == pytest.approx([values.min(), values.max()])
    assert errors[1] < 0.06
    assert errors[1] < errors[0]


def test_noise_of_coefficients_has_the_paper_s_scale():
    counts, epsilon, stream = np.arange(0, 110, 10), 0.5, Keystream(KEY)
    noise = np.array(
        [noisy_counts(counts, epsilon, stream, "coefficients") - counts for _ in range(1500)]
    )
    scale = len(counts) / epsilon  # n times Delta (l + 1) / epsilon with Delta = 1 / n
    ratio = noise.var() / (2 * scale**2)
    assert abs(ratio - 1) < 5 * np.sqrt(5 / noise.size) + 0.001
    steps = np.diff([noisy_counts(counts, epsilon, stream) - counts for _ in range(1500)], axis=1)
    assert abs(steps.var() / (2 * (2 / epsilon) ** 2) - 1) < 5 * np.sqrt(5 / steps.size) + 0.03


def test_margins_of_levels():
    codes = np.repeat([0, 1, 3], [50, 30, 20])
    margin = discrete_margin(codes, 0, 4, INF, Keystream())
    np.testing.assert_allclose(margin.cumulative, [0.5, 0.8, 0.8, 1.0])
    assert margin.quantile([0.0, 0.5, 0.51, 0.8, 0.81, 1.0]).tolist() == [0, 0, 1, 1, 3, 3]
    noisy = discrete_margin(codes, 0, 4, 0.5, Keystream(KEY))
    assert noisy.cumulative[-1] == 1
    assert (np.diff(noisy.cumulative) >= 0).all()
    empty = [1 - discrete_margin(codes, 0, 40, 0.5, Keystream()).cumulative[3] for _ in range(200)]
    assert np.mean(empty) < 0.2  # 36 levels that nobody has, and 100 samples
    lost = discrete_margin([0, 1], 0, 3, 1e-4, Keystream(KEY))  # noise alone
    assert np.isfinite(lost.cumulative).all()


# -- correlations ----------------------------------------------------------------------------


def test_correlations_are_the_literal_ones_and_those_of_noise_unbiased():
    rng, n, flip = np.random.default_rng(2), 300, Flip.of(0.5)
    z = rng.normal(size=(n, 3)) @ np.array([[1, 0.8, 0.2], [0, 0.6, 0.4], [0, 0, 0.9]])
    true, stream = spearmanr(z).statistic, Keystream(KEY)
    exact = rank_correlations(z.argsort(axis=0).argsort(axis=0) - (n - 1) / 2, np.zeros(3))
    np.testing.assert_allclose(exact.debiased, true, atol=1e-12)
    debiased = []
    for _ in range(200):
        ranks = np.column_stack([perturbed_ranks(z[:, j], flip, stream) for j in range(2)])
        estimate = rank_correlations(flip.debias(ranks, n), np.full(2, flip.noise_variance(n)))
        debiased.append(estimate.debiased[0, 1])
    middle = flip.debias(ranks, n) + (n + 1) / 2
    literal = oracle.spearman(middle[:, 0], middle[:, 1])
    assert debiased[-1] == pytest.approx(literal, abs=1e-12)
    assert abs(np.mean(debiased) - true[0, 1]) < 5 * np.std(debiased) / np.sqrt(200)


def test_blocks_missing_completely_at_random_do_not_bias_correlations():
    rng, n = np.random.default_rng(3), 40_000
    z = rng.normal(size=(n, 2)) @ np.array([[1, 0.7], [0, np.sqrt(0.51)]])
    scores = np.full((n, 2), np.nan)
    for j, rate in enumerate((0.4, 0.7)):
        rows = np.flatnonzero(rng.random(n) > rate)
        scores[rows, j] = z[rows, j].argsort().argsort() - (len(rows) - 1) / 2
    estimate = rank_correlations(scores, np.zeros(2))
    # Of a normal correlation, Spearman's is asin(r / 2) * 6 / pi.
    assert 2 * np.sin(np.pi * estimate.debiased[0, 1] / 6) == pytest.approx(0.7, abs=0.03)
    assert estimate.n_joint[0, 1] == (~np.isnan(scores)).all(axis=1).sum()


def test_the_nearest_correlation_matrix():
    """Higham's (2002) example, and one that is a correlation matrix already."""
    near = nearest_correlation(np.array([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]]))
    expected = [[1, 0.7607, 0.1573], [0.7607, 1, 0.7607], [0.1573, 0.7607, 1]]
    np.testing.assert_allclose(near, expected, atol=1e-3)
    good = 0.5 * np.eye(4) + 0.5
    np.testing.assert_allclose(nearest_correlation(good), good, atol=1e-12)
    noise = np.random.default_rng(0).normal(size=(60, 60)) * 0.4
    fixed = nearest_correlation(np.clip(noise + noise.T, -1, 1))
    assert np.linalg.eigvalsh(fixed)[0] > 5e-5
    np.testing.assert_allclose(np.diag(fixed), 1, atol=1e-9)


# Shares that levels are cut at, or that point masses begin and end at.
ONE = [None, np.array([0.2, 0.7]), np.array([[0.0, 0.5]])]
OTHER = [np.array([0.4]), np.array([[0.1, 0.4], [0.7, 0.8]])]


def ranked(z, cuts, rng):
    """Ranks of a column of levels or point masses, equal values in a random order."""
    share = norm.cdf(z)
    if cuts is not None and cuts.ndim == 1:
        share = np.digitize(share, cuts)
    for low, high in cuts if np.ndim(cuts) == 2 else ():
        share[(share > low) & (share < high)] = (low + high) / 2
    return np.lexsort((rng.random(len(z)), share)).argsort()


def tied(ranks, columns):
    """Normal scores of ranks, the mean in their place where values are equal."""
    return np.array([tied_scores(c, len(own))[own] for own, c in zip(ranks, columns, strict=True)])


@pytest.mark.parametrize(
    "r", [-0.3, 0.9] + [pytest.param(r, marks=pytest.mark.slow) for r in (-0.8, 0.0, 0.5)]
)
def test_latent_correlations_are_found_behind_levels_and_point_masses(r):
    rng, n = np.random.default_rng(4), 200_000
    z = rng.normal(size=(n, 2)) @ np.array([[1, r], [0, np.sqrt(1 - r**2)]])
    ranks = np.array([ranked(z[:, k], c, rng) for k, of in enumerate((ONE, OTHER)) for c in of])
    latent = 6 / np.pi * np.arcsin(r / 2)
    for observed, coefficients_of in (
        (np.corrcoef(ranks), rank_coefficients),
        (np.corrcoef(tied(ranks, ONE + OTHER)), score_coefficients),
    ):
        solved = latent_correlations(observed, np.array([coefficients_of(c) for c in ONE + OTHER]))
        np.testing.assert_allclose(solved[[0, 0, 2, 2], [3, 4, 3, 4]], r, atol=0.02)
        np.testing.assert_allclose(solved[1, 3:], r, atol=0.03)
        assert abs(r) < 0.5 or abs(observed[2, 4]) < abs(latent) - 0.01
    continuous = np.array([rank_coefficients(None)] * 2)
    rho = np.array([[1, latent]] * 2)
    assert latent_correlations(rho, continuous)[0, 1] == pytest.approx(r, abs=1e-9)


def test_latent_correlations_are_found_behind_noise():
    rng, n, r = np.random.default_rng(5), 200_000, 0.7
    z = rng.normal(size=(n, 2)) @ np.array([[1, r], [0, np.sqrt(1 - r**2)]])
    scores, coefficients = [], []
    for x, cuts, error in ((z[:, 0], None, 0.15), (z[:, 1], np.array([0.6]), 0.1)):
        rank = ranked(x, cuts, rng) / n + error * rng.normal(size=n)
        scores.append(tied([rank.argsort().argsort()], [cuts])[0])
        coefficients.append(score_coefficients(cuts, error))
    solved = latent_correlations(np.corrcoef(scores), np.array(coefficients))
    assert solved[0, 1] == pytest.approx(r, abs=0.02)
    assert np.corrcoef(scores)[0, 1] < 0.55


# -- scores ----------------------------------------------------------------------------------


def plain_scores(ranks, rng):
    """Scores of columns without equal values and without noise."""
    p = ranks.shape[1]
    return start_scores(ranks, [None] * p, np.ones(p), rng)


def test_draws_between_two_ends_have_the_moments_of_the_truncated_normal():
    n = 40_000
    ends = [(-1.0, 0.5), (2.0, np.inf), (-np.inf, -3.0), (6.0, 6.5)]
    for low, high in ends:
        args = [np.full(n, v) for v in (0.3, 1.2, low, high)]
        drawn = truncated_normal(*args, np.random.default_rng(0))
        assert ((drawn >= low) & (drawn <= high)).all()
        law = truncnorm((low - 0.3) / 1.2, (high - 0.3) / 1.2, 0.3, 1.2)
        assert drawn.mean() == pytest.approx(law.mean(), abs=5 * law.std() / np.sqrt(n))
    far = truncated_normal(
        *(np.array([v]) for v in (0.0, 1.0, 40.0, 41.0)), np.random.default_rng()
    )
    assert 40 <= far[0] <= 41


def test_swept_scores_keep_their_order_and_agree_with_one_at_a_time():
    rng, n = np.random.default_rng(6), 200
    omega = np.array([[1, 0.7, 0.3], [0.7, 1, 0.5], [0.3, 0.5, 1]])
    z = rng.normal(size=(n, 3)) @ np.linalg.cholesky(omega).T
    ranks = (z.argsort(axis=0).argsort(axis=0) + 1).astype(np.int32)
    scores = plain_scores(ranks, rng)
    drawn = draw_scores(scores, omega, rng)
    assert (drawn.argsort(axis=0) == z.argsort(axis=0)).all()
    literal = oracle.sweep(scores.z.copy(), scores.order, omega, rng)
    assert np.abs(np.corrcoef(drawn.T) - np.corrcoef(literal.T)).max() < 0.02
    assert np.abs(drawn - literal).mean() < 0.05


def test_the_margin_of_the_scores_is_the_paper_s():
    """F~ = H(F_observed), where (2.6) is evaluated at (2.7)."""
    rng, n = np.random.default_rng(7), 50
    x = rng.gamma(2.0, size=n)
    ranks = perturbed_ranks(x, Flip.of(1.0), Keystream(KEY)).astype(np.int32)
    scores = plain_scores(ranks[:, None], rng)
    z = draw_scores(scores, np.eye(1), rng)[:, 0]
    unique = np.empty(n)
    unique[scores.order[0]] = np.arange(n)  # equal ranks in the order that was drawn for them
    ordered, in_order = np.sort(x), np.sort(z)
    for value, f in oracle.evcds_margin(x, z, unique):
        m = int(np.searchsorted(ordered, value))
        assert f == pytest.approx(norm.cdf(in_order[m]), abs=1e-12)


def missing_at_random(n=4000):
    """Columns 1 and 2 are seen where column 0 tends to be small."""
    rng = np.random.default_rng(8)
    omega = np.array([[1, 0.8, 0.5], [0.8, 1, 0.6], [0.5, 0.6, 1]])
    z = rng.normal(size=(n, 3)) @ np.linalg.cholesky(omega).T
    x = z.copy()
    x[rng.random(n) < norm.cdf(2 * z[:, 0]), 1:] = np.nan
    return x, z, omega


def as_ranks(x):
    ranks = np.zeros(x.shape, dtype=np.int32)
    for j in range(x.shape[1]):
        rows = np.flatnonzero(~np.isnan(x[:, j]))
        ranks[rows, j] = x[rows, j].argsort().argsort() + 1
    return ranks


def test_margins_hold_where_blocks_are_missing_at_random():
    x, z, omega = missing_at_random()
    scores = plain_scores(as_ranks(x), np.random.default_rng(0))
    seen = ~np.isnan(x[:, 1])
    before = np.mean(np.abs(scores.z[seen, 1] - z[seen, 1]))
    fit_maps(scores, omega)
    after = np.mean(np.abs(scores.z[seen, 1] - z[seen, 1]))
    assert z[seen, 1].mean() < -0.4  # what is seen is not like the whole
    assert scores.z[seen, 1].mean() == pytest.approx(z[seen, 1].mean(), abs=0.05)
    assert after < before / 5
    # Half of all samples lie below H's median.
    share = scores.observed_share(1, np.array([0.5]))[0]
    assert share == pytest.approx((z[seen, 1] < 0).mean(), abs=0.03)
    assert scores.probability(1, np.array([share]))[0] == pytest.approx(0.5, abs=1e-6)


def test_shares_of_levels_hold_where_blocks_are_missing():
    """Seen and deciding columns have levels; equal values are ranked in random order."""
    n, p, found, observed = 20_000, (0.7, 0.85), [], []
    for seed in range(6):  # one table's share is off by 0.01 as often as not
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(n, 2)) @ np.array([[1, 0.8], [0, 0.6]])
        x = z > norm.ppf(p)
        second = rng.random(n) < np.where(x[:, 0], 0.1, 0.7)
        seen = np.column_stack([np.ones(n, dtype=bool), second])
        shares = [(~x[seen[:, j], j]).mean() for j in range(2)]
        ranks = np.zeros((n, 2), dtype=np.int32)
        for j in range(2):
            ties = np.lexsort((rng.random(seen[:, j].sum()), x[seen[:, j], j]))
            ranks[seen[:, j], j] = ties.argsort() + 1
        scores = start_scores(ranks, [np.array([share]) for share in shares], np.ones(2), rng)
        for _ in range(4):
            fit_maps(scores, nearest_correlation(scores.correlations()))
        found.append(scores.probability(1, np.array([shares[1]]))[0])
        observed.append(shares[1])
    assert np.mean(observed) - p[1] > 0.05
    assert np.mean(found) == pytest.approx(p[1], abs=0.015)
    assert np.abs(np.array(found) - p[1]).max() < 0.03


@pytest.mark.filterwarnings("error")
def test_a_slope_that_leads_beyond_all_numbers_bounds_no_tail():
    far, near = np.array([1e8, 1.0]), np.array([1.0, 0.0])
    assert histogram_cdf._reach(far, near, 0.4999999, 0.5) == np.inf


@pytest.mark.parametrize("spreads", [[0.14], [0.5, 0.7], np.linspace(0.2, 1.0, 1500)])
def test_sums_of_probabilities_are_those_row_by_row(spreads):
    rng, n, grid = np.random.default_rng(0), 1500, scores_module._GRID
    spread = rng.choice(spreads, n)
    mean = rng.normal(size=n) * np.sqrt(1 - spread**2)
    mean[:2] = 1e3, -1e3  # far beyond all points
    weights = np.column_stack([np.full(n, 1 / n), rng.normal(size=n)])
    found = scores_module._sums_below(mean, spread, weights)
    wanted = norm.cdf((grid[:, None] - mean) / spread) @ weights
    np.testing.assert_allclose(
        found / np.abs(weights).sum(axis=0), wanted / np.abs(weights).sum(axis=0), atol=1e-4
    )


def iterated(x, matrix, times):
    scores = plain_scores(as_ranks(x), np.random.default_rng(0))
    for _ in range(times):
        fit_maps(scores, matrix)
        matrix = second_moments(scores, matrix, 1e-4)
    return matrix


def test_iterations_remove_the_bias_of_correlations():
    x, _, omega = missing_at_random()
    start = 2 * np.sin(np.pi * spearmanr(x, nan_policy="omit").statistic / 6)
    assert np.abs(start - omega).max() > 0.1
    assert np.abs(iterated(x, start, 20) - omega).max() < 0.05
    # Ten iterations of the literal form have hardly moved from there.
    assert np.abs(oracle.ievcds(x, 10, np.random.default_rng(1)) - omega).max() > 0.1


def test_iterations_agree_with_algorithm_3_where_there_is_no_bias():
    _, x, _ = missing_at_random()
    x[np.random.default_rng(0).random(len(x)) < 0.4, 1:] = np.nan
    start = 2 * np.sin(np.pi * spearmanr(x, nan_policy="omit").statistic / 6)
    literal = oracle.ievcds(x, 10, np.random.default_rng(1))
    np.testing.assert_allclose(iterated(x, start, 10), literal, atol=0.03)


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.5, 1.0, 2.0, 5.0])
def test_filled_cells_are_a_point_mass_of_the_margin(value):
    """Beside the distribution function of a mixture, at every value, and its point masses."""
    margin = Margin(
        np.array([0.0, 1.0, 1.0, 3.0]), np.array([0.0, 0.2, 0.6, 1.0]), False,
        atoms=np.array([[0.2, 0.6]]),
    )  # fmt: skip
    made = with_filled(margin, value, 0.25)
    assert (np.diff(made.values) >= 0).all()
    assert (np.diff(made.cumulative) >= 0).all()
    drawn = made.quantile((np.arange(100_000) + 0.5) / 100_000)
    before = margin.quantile((np.arange(100_000) + 0.5) / 100_000)
    for at in (-0.5, 0.3, 0.9, 1.0, 1.7, 2.5, 4.0):
        mixed = 0.75 * (before <= at).mean() + 0.25 * (value <= at)
        assert (drawn <= at).mean() == pytest.approx(mixed, abs=2e-3)
    for low, high in made.atoms:
        assert np.ptp(made.quantile(np.linspace(low + 1e-9, high - 1e-9, 9))) == 0.0
    masses = sorted(np.diff(made.atoms, axis=1)[:, 0])
    np.testing.assert_allclose(masses, [0.55] if value == 1.0 else [0.25, 0.3])


def test_filled_cells_of_levels_and_counts():
    levels = Margin(np.arange(3.0), np.array([0.2, 0.9, 1.0]), discrete=True)
    assert likely_value(levels, Kind.ORDINAL) == 1.0
    np.testing.assert_allclose(with_filled(levels, 1.0, 0.5).cumulative, [0.1, 0.95, 1.0])
    wide = Margin(np.array([-1e8, 1.2, 3.2, 1e8]), np.array([0.01, 0.02, 0.98, 1.0]), False)
    assert likely_value(wide, Kind.CONTINUOUS) == pytest.approx(2.2, abs=0.01)  # not the ends
    assert likely_value(wide, Kind.COUNT) == 2.0
    assert likely_value(replace(wide, step=0.5), Kind.CONTINUOUS) in (2.0, 2.5)
