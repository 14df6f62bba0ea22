"""The VFEM oracle against what it must be without looking at any other implementation."""

import numpy as np
import pytest
from oracles.vfem import (
    Pooled,
    Theta,
    columns_of,
    exact_em,
    expected_information,
    expected_standard_errors,
    fast_loglik,
    flatten,
    generate,
    gradient_em,
    hessian,
    initial,
    joint_moments,
    observed_information,
    of_information,
    score,
    unflatten,
)
from scipy.stats import multivariate_normal

CASES = {
    "two": {"n": 30, "sizes": [2, 1], "rates": [0.3, 0.2], "seed": 1},
    "three": {"n": 30, "sizes": [1, 1, 1], "rates": [0.0, 0.3, 0.3], "seed": 2, "mean": 2.0},
}


def anywhere(pooled, seed=5):
    """A theta that is neither the truth nor a maximum."""
    rng = np.random.default_rng(seed)
    theta = initial(pooled)
    mu = [m + rng.normal(scale=0.3, size=m.shape) for m in theta.mu]
    sigma = [s * 1.3 + 0.2 * np.eye(len(s)) for s in theta.sigma]
    return Theta(0.4, [rng.normal(size=p) for p in pooled.sizes], mu, sigma, 0.8)


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Data, and the fixed point of the exact EM from the paper's start."""
    pooled, _ = generate(**CASES[request.param])
    return pooled, exact_em(pooled, initial(pooled), 600, tol=1e-11)[-1]


@pytest.fixture(scope="module")
def complete():
    """Data without anything missing, its least squares, and their standard errors."""
    pooled, _ = generate(60, [2, 2], 0.0, seed=3, mean=1.0, beta0=2.0)
    design = np.column_stack([np.ones(60), *pooled.X])
    beta = np.linalg.lstsq(design, pooled.y, rcond=None)[0]
    sigma2 = np.mean((pooled.y - design @ beta) ** 2)
    return pooled, beta, np.sqrt(sigma2 * np.diag(np.linalg.inv(design.T @ design)))


def test_generated_blocks_are_nan_where_masked_and_have_the_stated_moments():
    settings = {"seed": 4, "mean": 1.0, "noise": 0.5, "cross": 0.6, "beta0": 3.0}
    pooled, truth = generate(40000, [2, 1], [0.3, 0.0], **settings)
    for block, missing in zip(pooled.X, pooled.mask.T, strict=True):
        np.testing.assert_array_equal(np.isnan(block).all(axis=1), missing)
        np.testing.assert_array_equal(np.isnan(block).any(axis=1), missing)
    assert pooled.mask.mean(axis=0) == pytest.approx([0.3, 0.0], abs=0.01)
    start = initial(pooled)
    for k in pooled.parties:
        np.testing.assert_allclose(start.mu[k], truth.mu[k], atol=0.03)
        np.testing.assert_allclose(start.sigma[k], truth.sigma[k], atol=0.04)
    whole = ~pooled.mask[:, 0]
    between = np.cov(pooled.X[0][whole, 0], pooled.X[1][whole, 0])[0, 1]
    assert between == pytest.approx(0.36, abs=0.03)
    residual = pooled.y - 3.0 - sum(x @ b for x, b in zip(pooled.X, truth.beta, strict=True))
    assert residual[whole].std() == pytest.approx(0.5, abs=0.01)


def test_the_likelihood_is_that_of_each_sample_also_of_those_that_nobody_holds(case):
    pooled, _ = case
    theta = anywhere(pooled)
    pooled = Pooled(pooled.X, pooled.y, pooled.mask.copy())
    pooled.mask[:3] = True
    total = 0.0
    for i, y_i in enumerate(pooled.y):
        seen = [pooled.X[k][i] for k in pooled.parties if not pooled.mask[i, k]]
        moments = joint_moments(pooled, theta, pooled.mask[i])
        total += multivariate_normal.logpdf(np.concatenate([*seen, [y_i]]), *moments)
    assert fast_loglik(pooled)(theta) == pytest.approx(total, 1e-12)


def test_steps_are_the_scores_of_the_observed_likelihood(case):
    """Fisher's identity at any theta ties Eqs. (4), (6) and (7) to Eq. (3)."""
    pooled, _ = case
    theta, n, p = anywhere(pooled), len(pooled.y), sum(pooled.sizes)
    slopes = score(pooled, theta)
    gradient = unflatten(slopes, pooled.sizes)
    (new,) = gradient_em(pooled, theta, 1.0, 1)
    expected = flatten(theta)[: 1 + p] + theta.sigma2 / n * slopes[: 1 + p]
    np.testing.assert_allclose(flatten(new)[: 1 + p], expected, rtol=1e-7)
    for k in pooled.parties:
        sigma = theta.sigma[k]
        np.testing.assert_allclose(new.mu[k], theta.mu[k] + sigma @ gradient.mu[k] / n, rtol=1e-7)
        half = (gradient.sigma[k] + np.diag(np.diag(gradient.sigma[k]))) / 2
        np.testing.assert_allclose(new.sigma[k], sigma + 2 / n * sigma @ half @ sigma, rtol=1e-7)
    expected = theta.sigma2 + 2 * theta.sigma2**2 / n * gradient.sigma2
    assert new.sigma2 == pytest.approx(expected, 1e-7)


def test_exact_em_climbs_to_the_maximum_where_gradient_steps_stay(case):
    pooled, fixed = case
    for start in (initial(pooled), anywhere(pooled)):
        path = [fast_loglik(pooled)(t) for t in [start, *exact_em(pooled, start, 25)]]
        assert np.diff(path).min() > -1e-9
    np.testing.assert_allclose(score(pooled, fixed), 0, atol=1e-6)
    assert np.linalg.eigvalsh(observed_information(pooled, fixed)).min() > 0
    (again,) = gradient_em(pooled, fixed, 0.5, 1)
    np.testing.assert_allclose(flatten(again), flatten(fixed), atol=1e-9)


def test_nothing_missing_is_least_squares(complete):
    pooled, beta, errors = complete
    fixed = exact_em(pooled, initial(pooled), 3)[-1]
    np.testing.assert_allclose([fixed.beta0, *np.concatenate(fixed.beta)], beta, rtol=1e-10)
    observed = of_information(observed_information(pooled, fixed), pooled.sizes)
    np.testing.assert_allclose(observed, errors, rtol=1e-7)
    np.testing.assert_allclose(expected_standard_errors(pooled, fixed), errors, rtol=1e-10)


def test_expected_information_is_the_mean_curvature_over_y(case):
    """The curvature is quadratic in y: its mean over m_i - sd and m_i + sd is its expectation.

    mu and Sigma are the moments of the observed rows, so that the rows' curvature is its own
    expectation, too.
    """
    pooled, _ = case
    theta = initial(pooled, beta=anywhere(pooled).beta, beta0=0.4)
    moments = []
    for i, missing in enumerate(pooled.mask):
        mean, cov = joint_moments(pooled, theta, missing)
        x = np.concatenate([[], *[pooled.X[k][i] for k in pooled.parties if not missing[k]]])
        weights = np.linalg.solve(cov[:-1, :-1], cov[:-1, -1])
        variance = cov[-1, -1] - weights @ cov[:-1, -1]
        moments.append((mean[-1] + weights @ (x - mean[:-1]), variance))
    mean, variance = np.array(moments).T
    total = 0.0
    for y in (mean - np.sqrt(variance), mean + np.sqrt(variance)):
        loglik = fast_loglik(Pooled(pooled.X, y, pooled.mask))
        total = total - hessian(
            lambda v, loglik=loglik: loglik(unflatten(v, pooled.sizes)), flatten(theta)
        )
    information = expected_information(pooled, theta)
    np.testing.assert_allclose(total / 2, information, atol=1e-6 * information.max())


def test_expected_products_are_the_data_s_own_where_these_are_zero(complete):
    pooled, _, _ = complete
    stacked = np.column_stack([np.ones(len(pooled.y)), *pooled.X])
    orthogonal = np.linalg.qr(stacked)[0][:, 1:] * np.sqrt(len(pooled.y))
    X = [orthogonal[:, where] + 1.5 for where in columns_of(pooled)]
    shifted = Pooled(X, pooled.y, pooled.mask)
    theta = initial(shifted, beta=[np.array([1.0, -1.0]), np.array([0.5, 2.0])])
    gram = expected_information(shifted, theta)
    np.testing.assert_allclose(expected_information(shifted, theta, "expected"), gram, atol=1e-9)
    correlated, truth = generate(500, [1, 1], [0.2, 0.2], seed=10, cross=1.0)
    gram, without = (expected_standard_errors(correlated, truth, c) for c in ("gram", "expected"))
    assert (gram[1:] > 1.05 * without[1:]).all()
