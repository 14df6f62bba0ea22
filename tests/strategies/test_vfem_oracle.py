"""VFEM against Algorithm 1 of the paper, the maximum of the likelihood, and least squares.

The oracle is centralised and knows nothing of sums, patterns, Gram matrices or messages.
"""

import numpy as np
import pytest
from oracles.vfem import (
    exact_em,
    fast_loglik,
    flatten,
    generate,
    gradient_em,
    initial,
    maximise,
    observed_loglik,
    score,
)
from vfem_runs import (
    EXACT,
    PAPER,
    chosen,
    coefficients,
    estimates,
    fit,
    fit_tables,
    held_by_somebody,
    party_tables,
    recorded,
    std_errors,
    theta_of,
)

# After 50 iterations; sums are exact to 2^-33 a party in masked, to about 1e-8 in ckks mode.
TOLERANCE = {"plain": 1e-10, "masked": 1e-8, "ckks": 1e-6}
# In each some party holds everything, or rows are held by nobody.
CASES = {
    "two parties": {"n": 60, "sizes": [2, 3], "rates": [0.4, 0.0], "seed": 1, "mean": 0.5},
    "three parties": {"n": 50, "sizes": [2, 1, 3], "rates": [0.3, 0.4, 0.5], "seed": 3},
    "four parties": {"n": 40, "sizes": [1, 2, 1, 2], "rates": 0.5, "seed": 5, "cross": 0.5},
    "six parties": {"n": 40, "sizes": [1, 2, 1, 1, 2, 1], "rates": [0, 0.2, 0.6, 0.3, 0.5, 0],
                    "seed": 7, "mean": -0.3},
}  # fmt: skip


@pytest.fixture(scope="module")
def algorithm_1():
    """Every parameter after each of 50 iterations of the paper's algorithm, for each case."""
    made = {}

    def get(name, intercept):
        if (name, intercept) not in made:
            pooled, _ = generate(**CASES[name])
            start = initial(pooled, intercept=intercept)
            made[name, intercept] = pooled, gradient_em(pooled, start, 0.1, 50, intercept)
        return made[name, intercept]

    return get


def assert_equals(result, pooled, theta, intercept, tolerance):
    np.testing.assert_allclose(estimates(result), coefficients(theta, intercept), atol=tolerance)
    assert result.metrics["sigma2"] == pytest.approx(theta.sigma2, abs=tolerance)
    loglik = observed_loglik(pooled, theta)
    assert result.metrics["log_likelihood"] == pytest.approx(loglik, abs=tolerance * len(pooled.y))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_gradient_iterations_are_algorithm_1(algorithm_1, case, intercept):
    pooled, thetas = algorithm_1(case, intercept)
    for n_iter in (1, 2, 7, 50) if intercept else (2, 50):
        result = fit(pooled, shuffle=n_iter, max_iter=n_iter, intercept=intercept, **PAPER)
        assert_equals(result, pooled, thetas[n_iter - 1], intercept, TOLERANCE["plain"])
        assert result.model.outcome == "max iterations"
        history = [observed_loglik(pooled, theta) for theta in thetas[:2]]
        seen = [entry["log_likelihood"] for entry in result.history[:2]]
        np.testing.assert_allclose(seen, history[: len(seen)], atol=1e-8)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_private_sums_give_the_same_iterations(algorithm_1, mode):
    pooled, thetas = algorithm_1("three parties", True)
    n_iter = 50 if mode == "masked" else 7
    result = fit(pooled, mode, max_iter=n_iter, **PAPER)
    assert_equals(result, pooled, thetas[n_iter - 1], True, TOLERANCE[mode])


@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_private_alignment_gives_the_same_iterations(algorithm_1, mode):
    pooled, thetas = algorithm_1("three parties", True)
    result = fit(pooled, mode, shuffle=0, alignment="private-id", max_iter=7, **PAPER)
    assert_equals(result, pooled, thetas[6], True, TOLERANCE[mode])


def test_all_parameters_are_those_of_algorithm_1(algorithm_1):
    """Also means and covariances, which no party tells."""
    for case in ("three parties", "four parties"):
        pooled, thetas = algorithm_1(case, True)
        run = recorded(*party_tables(pooled), "plain", max_iter=7, **PAPER)
        np.testing.assert_allclose(flatten(theta_of(run)), flatten(thetas[6]), atol=1e-10)


def test_labels_of_samples_that_nobody_holds_count_unless_left_out():
    pooled, _ = generate(n=60, sizes=[2, 1], rates=0.5, seed=9)
    nobody = pooled.mask.all(axis=1)
    assert nobody.sum() > 5
    tables, labels = party_tables(pooled)
    everything = recorded(tables, labels, "plain", max_iter=3, **PAPER)
    assert any(f"{nobody.sum()} labels belong to" in note for note in everything.result.notes)
    held = held_by_somebody(pooled)
    for run, used in (
        (everything, pooled),
        (recorded(tables, labels[~nobody], "plain", max_iter=3, **PAPER), held),
        (recorded(tables, labels, "plain", align_rows="labelled", max_iter=3, **PAPER), pooled),
    ):
        theta = gradient_em(used, initial(used), 0.1, 3)[-1]
        assert_equals(run.result, used, theta, True, 1e-10)


def test_align_rows_intersection_uses_complete_samples_only():
    pooled, _ = generate(n=80, sizes=[2, 1], rates=0.3, seed=10)
    complete = chosen(pooled, ~pooled.mask.any(axis=1))
    run = recorded(*party_tables(pooled), "plain", align_rows="intersection", **EXACT)
    design = np.column_stack([np.ones(len(complete.y)), *complete.X])
    expected = np.linalg.lstsq(design, complete.y, rcond=None)[0]
    np.testing.assert_allclose(estimates(run.result), expected, atol=1e-8)


# -- the maximum of the likelihood -----------------------------------------------------------

WAYS = {
    "scoring": {},
    "scoring, not accelerated": {"acceleration": None},
    "gradient": {"step": "gradient", "learning_rate": 0.5, "acceleration": None, "tol": 1e-11,
                 "max_iter": 5000},
    "gradient, accelerated": {"step": "gradient", "learning_rate": 0.5, "tol": 1e-10},
    "from complete cases": {"initial": "complete-case"},
    "from imputed means": {"initial": "mean-imputed"},
    "not standardised": {"standardize": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def maxima():
    """By search for the largest likelihood, from the paper's start, with no EM in it."""
    made = {}
    for intercept in (True, False):
        pooled, _ = generate(n=70, sizes=[1, 2], rates=[0.3, 0.4], seed=2, mean=0.7)
        made[intercept] = pooled, maximise(pooled, initial(pooled, intercept=intercept), intercept)
    return made


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_leads_to_the_maximum_of_the_likelihood(maxima, way, intercept):
    pooled, best = maxima[intercept]
    settings = {**EXACT, "standard_errors": None, **WAYS[way], "intercept": intercept}
    run = recorded(*party_tables(pooled), "plain", **settings)
    result, theta = run.result, theta_of(run)
    assert result.model.outcome == "converged"
    np.testing.assert_allclose(estimates(result), coefficients(best, intercept), atol=1e-6)
    np.testing.assert_allclose(flatten(theta), flatten(best), atol=1e-5)
    assert result.metrics["sigma2"] == pytest.approx(best.sigma2, rel=1e-6)
    assert result.metrics["log_likelihood"] == pytest.approx(observed_loglik(pooled, best), 1e-9)
    slopes = score(pooled, theta, everything=True) / len(pooled.y)
    np.testing.assert_allclose(slopes[0 if intercept else 1 :], 0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_end_is_a_fixed_point_of_the_exact_em(case):
    """Its score is zero, and an iteration of Eq. (6) moves no parameter."""
    pooled, _ = generate(**{**CASES[case], "n": 250})  # complete samples must be enough
    run = recorded(*party_tables(pooled), "plain", **EXACT)
    theta = theta_of(run)
    assert run.result.model.outcome == "converged"
    assert np.abs(score(pooled, theta, everything=True)).max() < 1e-4 * len(pooled.y)
    moved = exact_em(pooled, theta, 1)[-1]
    np.testing.assert_allclose(flatten(moved), flatten(theta), atol=1e-6)
    assert run.result.metrics["log_likelihood"] == pytest.approx(
        observed_loglik(pooled, theta), abs=1e-6
    )


def test_exact_em_ends_where_vfem_does():
    pooled, _ = generate(n=60, sizes=[2, 1], rates=0.3, seed=1)
    fixed = exact_em(pooled, initial(pooled), 400, tol=1e-9)[-1]
    np.testing.assert_allclose(estimates(fit(pooled, **EXACT)), coefficients(fixed), atol=1e-6)


@pytest.mark.parametrize(("mode", "tol"), [("masked", 1e-6), ("ckks", 1e-3)])
def test_the_default_tolerance_suffices_in_private_sums(maxima, mode, tol):
    """Far below a standard error, which is a tenth here."""
    pooled, best = maxima[True]
    result = fit(pooled, mode)
    assert result.model.outcome == "converged"
    np.testing.assert_allclose(estimates(result), coefficients(best), atol=max(tol, 2e-4))


def test_wherever_it_is_stopped_the_parties_are_where_the_server_thinks_they_are():
    """The likelihood that is reported is that of the parameters handed over.

    With correlated parties many extrapolations are refused and steps shortened; one of those may
    be the last thing that the rounds allow.
    """
    pooled, _ = generate(n=80, sizes=[2, 1, 2], rates=0.4, seed=3, cross=1.0)
    pooled, loglik = held_by_somebody(pooled), fast_loglik(held_by_somebody(pooled))
    tables, labels = party_tables(pooled)
    kinds = set()
    for settings in ({}, {"step": "gradient", "learning_rate": 2.0}):
        for max_iter in (1, 7, 13, 19, 38):
            settings = {**EXACT, "standard_errors": None, **settings, "max_iter": max_iter}
            run = recorded(tables, labels, "plain", **settings)
            found = run.result.metrics["log_likelihood"]
            assert found == pytest.approx(loglik(theta_of(run)), abs=1e-6), max_iter
            # Going back from a last step that was no improvement is a round of its own.
            assert len(run.result.history) <= max_iter + (run.result.history[-1]["kind"] == "back")
            kinds |= {entry["kind"] for entry in run.result.history}
    assert kinds >= {"step", "extrapolated", "taken again", "back"}


# -- units -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_units_and_origins_do_not_matter(mode):
    pooled, _ = generate(n=150, sizes=[2, 1, 3], rates=[0.3, 0.4, 0.2], seed=3, mean=0.5)
    tables, labels = party_tables(held_by_somebody(pooled))
    factors = {"p0": [1e4, 1e-3], "p1": [1e4], "p2": [1e-3, 1.0, 1e4]}
    raw = {name: table * factors[name] + 1e3 for name, table in tables.items()}
    one = fit_tables(tables, labels, mode, check_correlation=False)
    other = fit_tables(raw, 1e5 * labels - 3e7, mode, check_correlation=False)
    tolerance = {"plain": 1e-6, "masked": 1e-5, "ckks": 1e-3}[mode]
    slopes = one.coefficients.index[1:]  # the intercept is that of another origin
    np.testing.assert_allclose(
        other.coefficients.loc[slopes, "z"], one.coefficients.loc[slopes, "z"], rtol=tolerance
    )
    scale = np.concatenate([factors[name] for name in tables])
    np.testing.assert_allclose(
        other.coefficients.loc[slopes, "estimate"] * scale,
        1e5 * one.coefficients.loc[slopes, "estimate"],
        rtol=tolerance,
    )
    assert other.metrics["sigma2"] == pytest.approx(1e10 * one.metrics["sigma2"], rel=tolerance)
    assert other.metrics["r2"] == pytest.approx(one.metrics["r2"], abs=tolerance)
    # A density in other units is another number, by a known factor.
    held = {name: len(table) for name, table in tables.items()}
    change = sum(held[name] * np.log(factors[name]).sum() for name in tables)
    change += len(labels) * np.log(1e5)
    assert one.metrics["log_likelihood"] - other.metrics["log_likelihood"] == pytest.approx(
        change, abs=1e-3
    )


def test_raw_units_without_standardising():
    """Columns of salaries: squares of 10^5 are beyond a ckks sum, the fits are not."""
    pooled, _ = generate(n=150, sizes=[2, 1], rates=0.3, seed=4)
    tables, labels = party_tables(held_by_somebody(pooled))
    raw = {name: table * 1e5 for name, table in tables.items()}
    one = fit_tables(tables, labels, "plain", check_correlation=False, tol=1e-9)
    for mode in ("plain", "masked"):
        settings = {"standardize": False, "check_correlation": False}
        other = fit_tables(raw, labels, mode, **settings)
        np.testing.assert_allclose(estimates(other)[1:] * 1e5, estimates(one)[1:], atol=1e-4)


# -- nothing missing -------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 1, 1, 1]], ids=str)
def test_with_nothing_missing_it_is_least_squares(sizes, intercept):
    pooled, _ = generate(n=100, sizes=sizes, rates=0.0, seed=6, mean=1.0, cross=0.4, beta0=2.0)
    result = fit(pooled, standard_errors="gram", intercept=intercept, **EXACT)
    design = np.column_stack([np.ones((100, int(intercept))), *pooled.X])
    expected, rss, *_ = np.linalg.lstsq(design, pooled.y, rcond=None)
    np.testing.assert_allclose(estimates(result), expected, atol=1e-6)
    assert result.metrics["sigma2"] == pytest.approx(rss[0] / 100, rel=1e-6)
    errors = np.sqrt(rss[0] / 100 * np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_allclose(std_errors(result), errors, rtol=2e-6)
    total = np.sum((pooled.y - pooled.y.mean() * intercept) ** 2)
    assert result.metrics["r2"] == pytest.approx(1 - rss[0] / total, abs=1e-6)
    adjusted = 1 - (rss[0] / (100 - 4 - intercept)) / (total / (100 - intercept))
    assert result.metrics["adjusted_r2"] == pytest.approx(adjusted, abs=1e-6)


def test_expected_errors_are_close_to_least_squares_where_parties_are_independent():
    pooled, _ = generate(n=2000, sizes=[2, 2], rates=0.0, seed=6, mean=1.0)
    design = np.column_stack([np.ones(2000), *pooled.X])
    _, rss, *_ = np.linalg.lstsq(design, pooled.y, rcond=None)
    errors = np.sqrt(rss[0] / 2000 * np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_allclose(std_errors(fit(pooled, **EXACT)), errors, rtol=0.05)


def test_one_party_takes_few_rounds():
    pooled, _ = generate(n=100, sizes=[4], rates=0.0, seed=6)
    assert len(fit(pooled, "masked").history) <= 3
