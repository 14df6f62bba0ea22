"""Paths of penalties from second moments, against scikit-learn and slow formulas on the rows."""

import numpy as np
import pytest
from glm_runs import pooled
from oracles.glm import lla, tangent
from sklearn.linear_model import lasso_path

from strategies.glm.quadratic import Quadratic, penalised_path


def centred(seed, n=300, **shape):
    X, y, _ = pooled("gaussian", n=n, seed=seed, **shape)
    return (X - X.mean(axis=0)) / X.std(axis=0), y - y.mean()


def moments(Z, y):
    return Quadratic(Z.T @ Z / len(y), Z.T @ y / len(y))


def every(p):
    return np.ones(p, dtype=bool)


@pytest.mark.parametrize("sizes", [(3, 2, 3), (40, 30, 30)])
def test_lasso_path_is_that_of_scikit_learn(sizes):
    Z, y = centred(0, sizes=sizes)
    loss = moments(Z, y)
    lambdas = loss.largest_lambda(every(Z.shape[1])) * np.geomspace(1.0, 0.001, 40)
    found = penalised_path(loss, lambdas, "lasso", every(Z.shape[1]))
    _, expected, _ = lasso_path(Z, y, alphas=lambdas, tol=1e-13, max_iter=100_000)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not found[:, 0].any()
    assert found[:, 1].any()
    for f, strength in enumerate(lambdas):
        assert loss.violation(found[:, f], np.full(Z.shape[1], strength)) < 1e-10


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


@pytest.mark.parametrize(("penalty", "shape"), [("scad", 3.7), ("mcp", 3.0)])
def test_concave_fits_are_stationary(penalty, shape):
    Z, y = centred(3)
    loss = moments(Z, y)
    found = penalised_path(loss, np.array([0.1]), penalty, every(8))[:, 0]
    assert loss.violation(found, tangent(found, 0.1, penalty, shape)) < 1e-10


def test_a_column_that_three_tangents_miss_is_selected():
    Z, y = centred(5)
    strength = 0.30466958
    found = penalised_path(moments(Z, y), np.array([strength]), "scad", every(8))[:, 0]
    early, late = (
        lla(Z, y, "gaussian", "scad", strength, 3.7, steps, intercept=False) for steps in (3, 60)
    )
    np.testing.assert_allclose(found, late, atol=1e-6)
    assert late[1] != 0.0 == early[1]


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


def test_without_penalty_it_is_least_squares():
    Z, y = centred(5)
    expected = np.linalg.lstsq(Z, y)[0]
    for penalty, lambdas in (("none", np.ones(2)), ("lasso", np.zeros(2)), ("scad", np.zeros(2))):
        found = penalised_path(moments(Z, y), lambdas, penalty, every(8))
        np.testing.assert_allclose(found, np.column_stack([expected, expected]), atol=1e-10)


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
