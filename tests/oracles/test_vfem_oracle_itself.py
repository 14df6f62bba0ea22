"""The VFEM oracle against what it must be without looking at any other implementation."""

import numpy as np
import pytest
from oracles.vfem import (
    Pooled,
    Theta,
    columns_of,
    complete_information,
    exact_em,
    expected_information,
    expected_standard_errors,
    fast_loglik,
    flatten,
    forced_em_columns,
    from_unconstrained,
    generate,
    gradient_em,
    hessian,
    initial,
    jacobian,
    joint_moments,
    maximise,
    mean_derivative,
    observed_information,
    observed_loglik,
    q_function,
    revealed_columns,
    score,
    sem_standard_errors,
    standard_errors,
    to_unconstrained,
    unflatten,
    variance_derivative,
    variance_of,
)

CASES = {
    "two": {"n": 50, "sizes": [2, 1], "rates": [0.3, 0.2], "seed": 1},
    "three": {"n": 40, "sizes": [1, 1, 1], "rates": [0.0, 0.3, 0.3], "seed": 2, "mean": 2.0},
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


# The data, the start, the coordinates


def test_generated_blocks_are_nan_where_masked_and_have_the_stated_moments():
    pooled, truth = generate(
        40000, [2, 1], [0.3, 0.0], seed=4, mean=1.0, noise=0.5, cross=0.6, beta0=3.0
    )
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


def test_start_has_zeros_and_the_moments_of_observed_rows():
    X = [np.array([[1.0], [3.0], [np.nan]]), np.array([[0.0], [1.0], [2.0]])]
    pooled = Pooled(X, np.array([1.0, 2.0, 6.0]), np.isnan(np.hstack(X)))
    start = initial(pooled)
    assert (start.beta0, start.sigma2) == pytest.approx((3.0, 14 / 3))
    assert [m.tolist() for m in start.mu] == [[2.0], [1.0]]
    assert [s[0, 0] for s in start.sigma] == pytest.approx([1.0, 2 / 3])
    assert [b.tolist() for b in start.beta] == [[0.0], [0.0]]
    assert initial(pooled, intercept=False).beta0 == 0.0


def test_coordinates_go_there_and_back(case):
    pooled, _ = case
    theta = anywhere(pooled)
    for there, back in ((flatten, unflatten), (to_unconstrained, from_unconstrained)):
        again = back(there(theta), pooled.sizes)
        np.testing.assert_allclose(flatten(again), flatten(theta), rtol=1e-12)


# The likelihood and the steps


def test_both_likelihoods_agree(case):
    pooled, fixed = case
    for theta in (initial(pooled), anywhere(pooled), fixed):
        assert fast_loglik(pooled)(theta) == pytest.approx(observed_loglik(pooled, theta), 1e-12)


def test_steps_are_the_scores_of_the_observed_likelihood(case):
    """Fisher's identity at any theta ties Eqs. (4), (6) and (7) to Eq. (3)."""
    pooled, _ = case
    theta, n, p = anywhere(pooled), len(pooled.y), sum(pooled.sizes)
    gradient = unflatten(score(pooled, theta, everything=True), pooled.sizes)
    (new,) = gradient_em(pooled, theta, 1.0, 1)
    np.testing.assert_allclose(
        flatten(new)[: 1 + p],
        flatten(theta)[: 1 + p] + theta.sigma2 / n * score(pooled, theta),
        rtol=1e-7,
    )
    for k in pooled.parties:
        sigma = theta.sigma[k]
        np.testing.assert_allclose(new.mu[k], theta.mu[k] + sigma @ gradient.mu[k] / n, rtol=1e-7)
        half = (gradient.sigma[k] + np.diag(np.diag(gradient.sigma[k]))) / 2
        np.testing.assert_allclose(new.sigma[k], sigma + 2 / n * sigma @ half @ sigma, rtol=1e-7)
    expected = theta.sigma2 + 2 * theta.sigma2**2 / n * gradient.sigma2
    assert new.sigma2 == pytest.approx(expected, 1e-7)


def test_gradient_7_is_sigma2_times_that_of_q(case):
    pooled, _ = case
    at, sizes = anywhere(pooled), pooled.sizes
    where = range(1 + sum(sizes))
    slope = jacobian(lambda v: q_function(pooled, unflatten(v, sizes), at), flatten(at), where)
    (new,) = gradient_em(pooled, at, 0.5, 1)
    step = (flatten(new) - flatten(at))[where]
    np.testing.assert_allclose(step, 0.5 * at.sigma2 * slope, atol=1e-8)


def test_without_intercept_beta0_stays(case):
    pooled, _ = case
    start = initial(pooled, intercept=False)
    exact = exact_em(pooled, start, 3, intercept=False)[-1]
    gradient = gradient_em(pooled, start, 0.1, 3, intercept=False)[-1]
    best = maximise(pooled, start, intercept=False)
    assert exact.beta0 == gradient.beta0 == best.beta0 == 0.0
    np.testing.assert_allclose(score(pooled, best)[1:], 0, atol=1e-6)
    np.testing.assert_allclose(
        flatten(exact_em(pooled, best, 1, intercept=False)[0]), flatten(best), atol=1e-7
    )


def test_gradient_steps_reach_the_fixed_point():
    pooled, _ = generate(40, [1, 1], [0.3, 0.2], seed=6)
    fixed = exact_em(pooled, initial(pooled), 400, tol=1e-10)[-1]
    end = gradient_em(pooled, initial(pooled), 0.5, 400)[-1]
    np.testing.assert_allclose(flatten(end), flatten(fixed), atol=1e-6)


def test_exact_em_never_lowers_the_likelihood(case):
    pooled, _ = case
    for start in (initial(pooled), anywhere(pooled)):
        path = [observed_loglik(pooled, t) for t in [start, *exact_em(pooled, start, 25)]]
        assert np.diff(path).min() > -1e-9


def test_fixed_point_has_no_score_and_is_the_maximum(case):
    pooled, fixed = case
    np.testing.assert_allclose(score(pooled, fixed, everything=True), 0, atol=1e-6)
    np.testing.assert_allclose(
        flatten(gradient_em(pooled, fixed, 0.5, 1)[0]), flatten(fixed), atol=1e-9
    )
    best = maximise(pooled, initial(pooled))
    np.testing.assert_allclose(flatten(best), flatten(fixed), atol=1e-7)
    assert np.linalg.eigvalsh(observed_information(pooled, best)).min() > 0


def test_nothing_missing_is_least_squares(complete):
    pooled, beta, errors = complete
    fixed = exact_em(pooled, initial(pooled), 3)[-1]
    np.testing.assert_allclose([fixed.beta0, *np.concatenate(fixed.beta)], beta, rtol=1e-10)
    np.testing.assert_allclose(standard_errors(pooled, fixed), errors, rtol=1e-7)
    np.testing.assert_allclose(sem_standard_errors(pooled, fixed), errors, rtol=1e-7)
    np.testing.assert_allclose(expected_standard_errors(pooled, fixed)[0], errors, rtol=1e-10)


def test_samples_without_any_party_count_through_y_alone():
    pooled, _ = generate(50, [1, 1], 0.5, seed=8)
    assert pooled.mask.all(axis=1).sum() > 3
    theta = anywhere(pooled)
    lone = pooled.mask.all(axis=1)
    alone = Pooled([x[lone] for x in pooled.X], pooled.y[lone], pooled.mask[lone])
    (mean,), ((variance,),) = joint_moments(pooled, theta, [True, True])
    expected = -0.5 * np.log(2 * np.pi * variance) - (alone.y - mean) ** 2 / (2 * variance)
    assert observed_loglik(alone, theta) == pytest.approx(expected.sum())
    assert np.isfinite(flatten(exact_em(pooled, theta, 1)[0])).all()


# Standard errors


def test_complete_information_is_the_curvature_of_q(case):
    pooled, fixed = case
    small = Pooled([x[:25] for x in pooled.X], pooled.y[:25], pooled.mask[:25])
    fixed = exact_em(small, fixed, 300, tol=1e-11)[-1]
    sizes, d = pooled.sizes, len(flatten(fixed))
    curvature = complete_information(small, fixed)
    rng = np.random.default_rng(0)
    for _ in range(3):
        line = rng.normal(size=d) * 0.1
        along = hessian(
            lambda t, line=line: q_function(
                small, unflatten(flatten(fixed) + t[0] * line, sizes), fixed
            ),
            np.zeros(1),
        )
        assert -25 * along[0, 0] == pytest.approx(line @ curvature @ line, 1e-5)


@pytest.mark.parametrize("intercept", [True, False])
def test_sem_is_the_observed_information(case, intercept):
    pooled, fixed = case
    if not intercept:
        fixed = maximise(pooled, initial(pooled, intercept=False), intercept=False)
    sem = sem_standard_errors(pooled, fixed, intercept)
    np.testing.assert_allclose(sem, standard_errors(pooled, fixed, intercept), rtol=1e-5)
    assert (sem[0] == 0) is not intercept


def moments_given_observed(pooled, theta, i):
    """Mean and variance of y_i given the sample's covariates, from the joint normal."""
    mean, cov = joint_moments(pooled, theta, pooled.mask[i])
    x = np.concatenate([[], *[pooled.X[k][i] for k in pooled.parties if not pooled.mask[i, k]]])
    weights = np.linalg.solve(cov[:-1, :-1], cov[:-1, -1])
    return np.array([mean[-1] + weights @ (x - mean[:-1]), cov[-1, -1] - weights @ cov[:-1, -1]])


def test_derivatives_are_those_of_y_given_the_observed_covariates(case):
    pooled, _ = case
    theta = anywhere(pooled)

    def moments(vector, i):
        return moments_given_observed(pooled, unflatten(vector, pooled.sizes), i)

    _, firsts = np.unique(pooled.mask, axis=0, return_index=True)
    for i in firsts:
        slopes = jacobian(lambda v, i=i: moments(v, i), flatten(theta))
        np.testing.assert_allclose(mean_derivative(pooled, theta, i), slopes[:, 0], atol=1e-8)
        np.testing.assert_allclose(variance_derivative(pooled, theta, i), slopes[:, 1], atol=1e-8)
        assert moments(flatten(theta), i)[1] == pytest.approx(variance_of(pooled, theta, i))


def test_expected_information_is_the_mean_curvature_over_y(case):
    """The curvature is quadratic in y: its mean over m_i - sd and m_i + sd is its expectation.

    mu and Sigma are the moments of the observed rows, so that the rows' curvature is its own
    expectation, too.
    """
    pooled, _ = case
    theta = initial(pooled, beta=anywhere(pooled).beta, beta0=0.4)
    moments = [moments_given_observed(pooled, theta, i) for i in range(len(pooled.y))]
    mean, variance = np.array(moments).T
    total = 0.0
    for y in (mean - np.sqrt(variance), mean + np.sqrt(variance)):
        loglik = fast_loglik(Pooled(pooled.X, y, pooled.mask))
        total = total - hessian(
            lambda v, loglik=loglik: loglik(unflatten(v, pooled.sizes)), flatten(theta)
        )
    information = expected_information(pooled, theta)
    np.testing.assert_allclose(total / 2, information, atol=1e-6 * information.max())


def test_three_standard_errors_agree_in_large_samples():
    pooled, truth = generate(6000, [1, 1], [0.3, 0.2], seed=9, mean=1.0)
    observed = standard_errors(pooled, maximise(pooled, truth))
    gram, covariance = expected_standard_errors(pooled, truth)
    without, _ = expected_standard_errors(pooled, truth, cross="expected")
    np.testing.assert_allclose(gram, observed, rtol=0.05)
    np.testing.assert_allclose(without, gram, rtol=0.02)
    assert covariance.shape == (8, 8)


def test_expected_products_are_the_data_s_own_where_these_are_zero(complete):
    pooled, _, _ = complete
    stacked = np.column_stack([np.ones(len(pooled.y)), *pooled.X])
    orthogonal = np.linalg.qr(stacked)[0][:, 1:] * np.sqrt(len(pooled.y))
    X = [orthogonal[:, where] + 1.5 for where in columns_of(pooled)]
    shifted = Pooled(X, pooled.y, pooled.mask)
    theta = initial(shifted, beta=[[1.0, -1.0], [0.5, 2.0]])
    gram = expected_information(shifted, theta)
    np.testing.assert_allclose(expected_information(shifted, theta, "expected"), gram, atol=1e-9)


def test_expected_products_ignore_correlation_between_parties():
    pooled, truth = generate(500, [1, 1], [0.2, 0.2], seed=10, cross=1.0)
    gram, _ = expected_standard_errors(pooled, truth)
    without, _ = expected_standard_errors(pooled, truth, cross="expected")
    assert (gram[1:] > 1.05 * without[1:]).all()


# Privacy


@pytest.mark.parametrize("h", [1e-4, 1.0, 100.0])
def test_differences_of_summed_fits_are_raw_columns(case, h):
    pooled, fixed = case
    assert len(forced_em_columns(pooled, fixed, h)) == sum(pooled.sizes)
    for k, columns in enumerate(revealed_columns(pooled, fixed, h)):
        has = ~pooled.mask[:, k]
        np.testing.assert_allclose(columns[has], pooled.X[k][has], atol=1e-9)
        np.testing.assert_allclose(columns[~has] - fixed.mu[k], 0, atol=1e-9)
