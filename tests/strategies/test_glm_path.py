"""Paths of penalties from second moments, BIC's choice: scikit-learn, statsmodels, formulas."""

import numpy as np
import pytest
import statsmodels.api as sm
from glm_runs import pooled
from oracles.glm import lla
from sklearn.linear_model import lasso_path

from strategies.glm import quadratic
from strategies.glm.likelihoods import from_complete_rows
from strategies.glm.quadratic import Quadratic, penalised_path
from strategies.glm.selection import PenalisedFits
from strategies.linear.moments.patterns import Patterns


def centred(seed, n=300, **shape):
    X, y, _ = pooled("gaussian", n=n, seed=seed, **shape)
    return (X - X.mean(axis=0)) / X.std(axis=0), y - y.mean()


def moments(Z, y):
    return Quadratic(Z.T @ Z / len(y), Z.T @ y / len(y))


def every(p):
    return np.ones(p, dtype=bool)


def test_the_order_of_lambdas_does_not_matter():
    Z, y = centred(1)
    lambdas = np.array([0.02, 0.5, 0.1])
    found = penalised_path(moments(Z, y), lambdas, "scad", every(8))
    other = penalised_path(moments(Z, y), lambdas[::-1], "scad", every(8))
    np.testing.assert_allclose(found, other[:, ::-1], atol=1e-12)


@pytest.mark.parametrize(("penalty", "shape"), [("scad", 3.7), ("mcp", 3.0)])
@pytest.mark.parametrize("strength", [0.05, 0.12, 0.4])
def test_concave_penalties_follow_the_literal_lla(penalty, shape, strength):
    Z, y = centred(2)
    found = penalised_path(moments(Z, y), np.array([strength]), penalty, every(8))[:, 0]
    expected = lla(Z, y, "gaussian", penalty, strength, shape, 30, intercept=False)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert 0 < np.count_nonzero(found) < 8


def test_a_column_that_three_tangents_miss_is_selected():
    Z, y = centred(5)
    strength = 0.30466958
    found = penalised_path(moments(Z, y), np.array([strength]), "scad", every(8))[:, 0]
    early, late = (
        lla(Z, y, "gaussian", "scad", strength, 3.7, steps, intercept=False) for steps in (3, 60)
    )
    np.testing.assert_allclose(found, late, atol=1e-6)
    assert late[1] != 0.0 == early[1]


def test_coordinates_descend_only_where_other_columns_are_selected(monkeypatch):
    """Elsewhere the equations of the columns selected before are enough: most of the time."""
    real, descents = quadratic._lasso, []
    monkeypatch.setattr(quadratic, "_lasso", lambda *given: descents.append(1) or real(*given))
    Z, y = centred(1)
    lambdas = np.geomspace(1.0, 0.01, 50)
    found = penalised_path(moments(Z, y), lambdas, "scad", every(8))
    assert len(descents) < 25
    for strength, beta in zip(lambdas[::7], found.T[::7], strict=True):
        expected = lla(Z, y, "gaussian", "scad", strength, 3.7, 30, intercept=False)
        np.testing.assert_allclose(beta, expected, atol=1e-6)


def test_columns_without_penalty_take_their_best_values():
    Z, y = centred(4)
    penalised = every(8)
    penalised[[2, 5]] = False
    loss = moments(Z, y)
    far = loss.largest_lambda(penalised)
    found = penalised_path(loss, np.array([far * 1.001, far * 0.9]), "lasso", penalised)
    expected = np.zeros(8)
    expected[[2, 5]] = np.linalg.lstsq(Z[:, [2, 5]], y)[0]
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-10)
    assert np.count_nonzero(found[:, 1]) == 3
    assert loss.violation(found[:, 1], 0.9 * far * penalised) < 1e-10


def test_columns_that_determine_each_other_or_do_not_vary():
    Z, y = centred(6)
    Z[:, 7], Z[:, 4] = Z[:, 0], 0.0
    loss = moments(Z, y)
    lambdas = np.array([0.3, 0.05, 0.001])
    found = penalised_path(loss, lambdas, "lasso", every(8))
    assert not found[4].any()
    _, expected, _ = lasso_path(Z, y, alphas=lambdas, tol=1e-13, max_iter=100_000)
    np.testing.assert_allclose(Z @ found, Z @ expected, atol=1e-6)
    free = penalised_path(loss, np.zeros(1), "none", every(8))[:, 0]
    np.testing.assert_allclose(Z @ free, Z @ np.linalg.lstsq(Z, y)[0], atol=1e-9)


def test_more_columns_than_rows():
    Z, y = centred(7, n=60, sizes=(60, 60))
    loss = moments(Z, y)
    lambdas = loss.largest_lambda(every(120)) * np.geomspace(0.9, 0.1, 8)
    found = penalised_path(loss, lambdas, "lasso", every(120))
    _, expected, _ = lasso_path(Z, y, alphas=lambdas, tol=1e-13, max_iter=100_000)
    np.testing.assert_allclose(found, expected, atol=1e-6)


P = 8
EVERY = np.ones(P, dtype=bool)


def rows(seed=0, n=300, level=0.0):
    X, y, _ = pooled("gaussian", n=n, seed=seed)
    return X + level, y


def complete(X, y, standardize=True, intercept=True):
    pattern = Patterns.of(np.column_stack([X, y])).patterns[0]
    return from_complete_rows(pattern, standardize, intercept)


def test_a_large_level_costs_no_digits_of_moments_in_standard_units():
    X, y = rows(level=1e6)
    center, unit = X.mean(axis=0), X.std(axis=0)
    at = complete((X - center) / unit, y).in_units(center, unit)
    found = PenalisedFits(at, "none", None, EVERY).by_bic()
    other = sm.OLS(y, sm.add_constant(X - 1e6)).fit()
    np.testing.assert_allclose(found.beta[:, 0], other.params[1:], rtol=1e-7)
    spread = np.sqrt(np.diag(at.covariance(np.arange(P), other.scale)))
    np.testing.assert_allclose(spread[1:], other.bse[1:], rtol=1e-7)


@pytest.mark.parametrize("standardize", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("penalty", [pytest.param("lasso", marks=pytest.mark.slow), "scad"])
def test_bic_chooses_as_on_the_rows(penalty, standardize):
    X, y = rows(1)
    lambdas = np.geomspace(1.5, 0.01, 12)
    steps = {"lasso": 0, "scad": 30}[penalty]
    at = complete(X, y, standardize)
    found = PenalisedFits(at, penalty, lambdas, EVERY).by_bic()
    unit = X.std(axis=0) if standardize else np.ones(P)
    bic = []
    for f, strength in enumerate(lambdas):
        fit = lla(X / unit, y, "gaussian", penalty, strength, 3.7, steps)
        np.testing.assert_allclose(found.beta[:, f] * unit, fit[1:], atol=1e-6)
        assert found.intercepts[f] == pytest.approx(fit[0], abs=1e-5)
        left = np.sum((y - fit[0] - (X / unit) @ fit[1:]) ** 2)
        assert at.noise_of(found.beta[:, f]) == pytest.approx(left / len(y), rel=1e-6)
        bic.append(len(y) * np.log(left / len(y)) + np.log(len(y)) * np.count_nonzero(fit[1:]))
    np.testing.assert_allclose(found.bic - found.bic[0], np.array(bic) - bic[0], atol=1e-3)
    assert found.chosen == np.argmin(bic)
    assert found.violation < 1e-9


def test_columns_that_do_not_vary():
    X, y = rows(4)
    X[:, 3] = 2.5
    at = complete(X, y)
    found = PenalisedFits(at, "none", None, EVERY).by_bic()
    kept = np.delete(np.arange(P), 3)
    other = sm.OLS(y, sm.add_constant(X[:, kept])).fit()
    np.testing.assert_allclose(found.beta[kept, 0], other.params[1:], rtol=1e-8)
    assert found.beta[3, 0] == 0.0
    assert at.scale[3] == 0.0
    level = complete(X, y, intercept=False)  # here it is the intercept
    found = PenalisedFits(level, "none", None, EVERY).by_bic()
    assert 2.5 * found.beta[3, 0] == pytest.approx(other.params[0], rel=1e-7)
