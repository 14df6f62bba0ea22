"""Fits of the paper's iterations against scikit-learn, statsmodels and a literal LLA."""

import numpy as np
import pytest
import statsmodels.api as sm
from glm_runs import estimates, pooled
from glm_runs import run_sums as run
from oracles.glm import lla
from sklearn.linear_model import LogisticRegression, lasso_path

from strategies.glm import fit_glm

FAMILIES = ["gaussian", "binomial", "poisson"]
EXACT = {"kkt_tol": 1e-8, "tol": 1e-6, "max_iter": 3000}
SM = {
    "gaussian": sm.families.Gaussian,
    "binomial": sm.families.Binomial,
    "poisson": sm.families.Poisson,
}


def test_gaussian_lasso_path_is_that_of_scikit_learn():
    X, y, _ = pooled("gaussian", seed=1)
    lambdas = np.geomspace(1.0, 0.005, 15)
    result = run(X, y, penalty="lasso", lambdas=lambdas, standardize=False, kkt_tol=1e-6)
    _, expected, _ = lasso_path(X - X.mean(axis=0), y - y.mean(), alphas=lambdas, tol=1e-12)
    found = result.model.path_coefficients.to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    levels = y.mean() - X.mean(axis=0) @ expected
    np.testing.assert_allclose(result.model.path["intercept"], levels, atol=1e-4)
    assert (np.count_nonzero(found, axis=0) == result.model.path["selected"]).all()


def test_logistic_lasso_is_that_of_scikit_learn():
    X, y, _ = pooled("binomial", seed=3)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    other = LogisticRegression(
        l1_ratio=1.0, C=1 / (len(y) * 0.03), solver="saga", tol=1e-9, max_iter=100_000
    ).fit(Z, y)
    result = run(Z, y, family="binomial", penalty="lasso", lambdas=0.03, **EXACT)
    expected = np.concatenate([other.intercept_, other.coef_[0]])
    np.testing.assert_allclose(estimates(result), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "intercept"), [*((family, True) for family in FAMILIES), ("binomial", False)]
)
def test_without_penalty_it_is_statsmodels(family, intercept):
    X, y, _ = pooled(family, seed=4, intercept=0.3 if intercept else 0.0)
    if not intercept:  # a common level makes columns of different parties collinear
        X = X - X.mean(axis=0)
    result = run(X, y, family=family, penalty=None, intercept=intercept, **EXACT)
    other = sm.GLM(y, sm.add_constant(X) if intercept else X, SM[family]()).fit(tol=1e-12)
    np.testing.assert_allclose(estimates(result), other.params, atol=1e-5)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-5)
    np.testing.assert_allclose(result.coefficients["p_value"], other.pvalues, atol=1e-5)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=1e-3)
    assert result.metrics["deviance"] == pytest.approx(other.deviance, rel=1e-6)
    assert result.model.outcome == "converged"


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_sums_of_every_mode_lead_to_the_same_fit(mode):
    if mode == "ckks":
        pytest.importorskip("tenseal")
    X, y, _ = pooled("binomial", n=150, seed=5)
    settings = {"family": "binomial", "penalty": None, "kkt_tol": 1e-6}
    plain, other = run(X, y, **settings), run(X, y, mode, **settings)
    np.testing.assert_allclose(estimates(other), estimates(plain), atol=1e-4)
    assert other.metrics["converged"] == 1


@pytest.mark.parametrize(("family", "penalty"), [("binomial", "scad"), ("poisson", "mcp")])
def test_concave_penalties_follow_the_literal_lla(family, penalty):
    X, y, _ = pooled(family, seed=6)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    a, strength, steps = {"scad": 3.7, "mcp": 3.0}[penalty], 0.12, 4
    result = run(
        Z, y, family=family, penalty=penalty, lambdas=strength, lla_steps=steps,
        standardize=False, **(EXACT | {"tol": 1e-8}),
    )  # fmt: skip
    expected = lla(Z, y, family, penalty, strength, a, steps)
    np.testing.assert_allclose(estimates(result), expected, atol=1e-5)
    assert 0 < np.count_nonzero(expected[1:]) < Z.shape[1]


def test_unpenalised_columns_stay():
    X, y, _ = pooled("gaussian", seed=9)
    result = run(X, y, penalty="lasso", lambdas=100.0, unpenalized="p1:x3, p2:x5")
    table = result.coefficients["estimate"]
    assert table[("p1", "x3")] != 0
    others = table.drop([("p1", "x3"), ("p2", "x5"), ("server", "intercept")])
    assert (others == 0).all()
    D = np.column_stack([np.ones(len(y)), X[:, [3, 5]]])
    expected = np.linalg.lstsq(D, y)[0]
    assert table[("p1", "x3")] == pytest.approx(expected[1], abs=1e-3)


def test_standard_errors_are_those_of_a_fit_to_the_selected_columns():
    X, y, _ = pooled("binomial", n=600, seed=10, strength=1.5)
    result = run(X, y, "masked", family="binomial", penalty="scad", lambdas=0.02, **EXACT)
    found = estimates(result)
    chosen = np.flatnonzero(found[1:])
    D = sm.add_constant(X[:, chosen])
    other = sm.GLM(y, D, sm.families.Binomial()).fit(tol=1e-12)
    kept = result.coefficients["std_error"].dropna()
    assert len(kept) == 1 + len(chosen)
    np.testing.assert_allclose(kept, other.bse, rtol=0.02)
    assert result.coefficients["std_error"].isna().sum() == X.shape[1] - len(chosen)


def test_unlabelled_samples_are_predicted():
    X, y, _ = pooled("poisson", seed=11)
    full = y.copy()
    y[-20:] = np.nan
    result = run(X, y, family="poisson", penalty=None, **EXACT)
    fit = sm.GLM(full[:-20], sm.add_constant(X[:-20]), sm.families.Poisson()).fit(tol=1e-12)
    expected = fit.predict(sm.add_constant(X)[-20:])
    np.testing.assert_allclose(result.predictions["prediction"], expected, rtol=1e-4)
    np.testing.assert_allclose(np.exp(result.predictions["linear_predictor"]), expected, rtol=1e-4)
    assert list(result.predictions.index) == [f"s{i:04}" for i in range(280, 300)]


def test_the_fit_in_one_process_is_the_federated_one():
    family = "binomial"
    X, y, _ = pooled(family, seed=12)
    result = run(X, y, family=family)
    other = fit_glm(np.split(X, [3, 5], axis=1), y, family)
    np.testing.assert_allclose(other.lambdas[0] / result.model.path.index[0], 1, rtol=0.5)
    lambdas = list(result.model.path.index)
    same = fit_glm(np.split(X, [3, 5], axis=1), y, family, lambdas=lambdas)
    np.testing.assert_allclose(same.beta, estimates(result)[1:], atol=1e-9)
    assert same.intercept == pytest.approx(estimates(result)[0], abs=1e-9)


def test_one_party_and_one_column_each():
    X, y, _ = pooled("gaussian", seed=13)
    whole = run(X, y, sizes=(8,), penalty="lasso", lambdas=0.05, kkt_tol=1e-6)
    parts = run(X, y, sizes=(1,) * 8, penalty="lasso", lambdas=0.05, kkt_tol=1e-6)
    np.testing.assert_allclose(estimates(whole), estimates(parts), atol=1e-4)
    np.testing.assert_allclose(
        whole.coefficients["std_error"].to_numpy(),
        parts.coefficients["std_error"].to_numpy(), rtol=1e-3,
    )  # fmt: skip
