"""VerticalGLM with labels 0 and 1 and with counts, by masked means: statsmodels, and few rounds."""

import numpy as np
import pytest
import statsmodels.api as sm
from glm_runs import estimates, pooled, run, split
from oracles.glm import lla
from vfem_runs import recorded, rounds_of

from flwr_vertical.errors import ConfigError, DataError
from strategies.glm import VerticalGLM
from strategies.regression.glm.quadratic import Quadratic, penalised_path

SM = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson}
FREE = 15
N = {"binomial": 1500, "poisson": 3000}


def data(family, seed=4):
    X, y, _ = pooled(family, n=N[family] + FREE, seed=seed, strength=0.7)
    full = y.copy()
    y[-FREE:] = np.nan
    return X, y, full


def statsmodels_of(family, X, y):
    return sm.GLM(y, sm.add_constant(X), SM[family]()).fit(tol=1e-12)


@pytest.fixture(scope="module")
def fits():
    """Fits without a penalty, by family."""
    made = {}

    def get(family):
        if family not in made:
            X, y, _ = data(family)
            made[family] = run(X, y, "masked", family=family, penalty=None)
        return made[family]

    return get


@pytest.mark.parametrize(("family", "within"), [("binomial", 1e-6), ("poisson", 1e-5)])
def test_without_a_penalty_it_is_statsmodels(fits, family, within):
    X, y, _ = data(family)
    result, other = fits(family), statsmodels_of(family, X[:-FREE], y[:-FREE])
    np.testing.assert_allclose(estimates(result), other.params, atol=within)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-3)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=0.05)
    assert result.metrics["deviance_explained"] == pytest.approx(
        1 - other.deviance / other.null_deviance, abs=1e-3
    )


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_rounds(fits, family):
    result = fits(family)
    found = rounds_of(result)
    evaluations = int(result.metrics["iterations"])
    assert found["place_fits"] == evaluations
    # Means once an evaluation; information and log likelihood once more, of the last.
    assert evaluations < found["open_means"] <= evaluations + 2
    assert result.ledger.rounds == 8 + found["place_fits"] + found["open_means"] <= 30
    assert result.metrics["converged"] == 1


def test_the_path_is_that_of_the_quadratic_at_the_maximum():
    X, y, _ = data("binomial")
    X, y = X[:-FREE], y[:-FREE]
    lambdas = np.geomspace(0.2, 0.005, 8)
    result = run(X, y, family="binomial", penalty="lasso", lambdas=lambdas)
    other = statsmodels_of("binomial", X, y)
    unit = X.std(axis=0)
    D = np.column_stack([np.ones(len(y)), X / unit])
    w = other.fittedvalues * (1 - other.fittedvalues)
    H = D.T @ (D * w[:, None]) / len(y)
    H = H[1:, 1:] - np.outer(H[0, 1:], H[0, 1:]) / H[0, 0]
    loss = Quadratic(H, H @ (other.params[1:] * unit))
    expected = penalised_path(loss, lambdas, "lasso", 0.0, np.ones(8, dtype=bool), 1)
    found = result.model.path_coefficients.to_numpy() * unit[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_scad_by_bic_selects_as_on_the_rows():
    X, y, _ = data("binomial", seed=5)
    X, y = X[:-FREE], y[:-FREE]
    result = run(X, y, family="binomial")
    table = result.coefficients
    unit = X.std(axis=0)
    exact = lla(X / unit, y, "binomial", "scad", result.metrics["lambda"], 3.7, 3)
    chosen = np.flatnonzero(exact[1:])
    assert set(np.flatnonzero(estimates(result)[1:])) == set(chosen) == {0, 2, 4, 6}
    # Both are estimates of maximum likelihood of these columns, up to a fraction of their errors.
    other = statsmodels_of("binomial", X[:, chosen], y)
    kept = table["std_error"].notna().to_numpy()
    off = np.abs(estimates(result)[kept] - other.params)
    assert (off < 0.5 * other.bse).all()
    np.testing.assert_allclose(table["std_error"][kept], other.bse, rtol=0.05)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=1.0)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_unlabelled_samples_are_predicted(fits, family):
    X, y, _ = data(family)
    other = statsmodels_of(family, X[:-FREE], y[:-FREE])
    found = fits(family).predictions
    eta = sm.add_constant(X)[-FREE:] @ other.params
    off = np.abs(found["linear_predictor"].to_numpy() - eta)
    assert off.max() < 0.05  # three parties, each to 1 % of the working response's deviation
    np.testing.assert_allclose(found["prediction"], other.predict(sm.add_constant(X)[-FREE:]), 0.06)


def test_two_parties_without_an_intercept_in_given_units():
    X, y, _ = data("binomial", seed=6)
    X, y = X[:-FREE], y[:-FREE]
    settings = {"family": "binomial", "penalty": None, "intercept": False, "standardize": False}
    result = run(X, y, sizes=(5, 3), **settings)
    other = sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-12)
    np.testing.assert_allclose(estimates(result), other.params, atol=1e-5)
    np.testing.assert_allclose(result.coefficients["std_error"], other.bse, rtol=1e-3)


def test_no_message_to_a_party_holds_a_label_or_a_fit():
    from test_vfem_privacy import numbers, words

    X, y, _ = pooled("binomial", n=300, seed=7, strength=0.7)
    tables, labels = split(X, y)
    strategy = VerticalGLM("binomial", penalty=None)
    run_ = recorded(tables, labels, strategy=strategy, alignment="plain", seed=1)
    table = run_.result.coefficients["estimate"]
    parts = [frame.to_numpy() @ table[name].to_numpy() for name, frame in tables.items()]
    eta = sum(parts) + table.iloc[0]
    mu = 1 / (1 + np.exp(-eta))
    secret = numbers(eta, eta - table.iloc[0], mu, mu * (1 - mu), y - mu, y - y.mean(), *parts)
    assert len(secret) > 300
    assert not any(words(message.content) & secret for message in run_.messages)


def test_separated_labels_are_refused_by_name():
    X, y, _ = pooled("binomial", n=400, seed=3)
    y[:] = X[:, 1] > np.median(X[:, 1])
    with pytest.raises(DataError, match=r"perfect separation.*p0:x1.*exchange='sums'"):
        run(X, y, family="binomial")


def test_labels_of_another_family_are_refused_before_the_first_round():
    X, y, _ = pooled("binomial", n=200)
    with pytest.raises(DataError, match="needs labels 0 and 1, got 2 different"):
        run(X, y + 1, family="binomial")
    with pytest.raises(DataError, match=r"needs counts 0, 1, 2, ... as labels"):
        run(X, y - 0.5, family="poisson")
    with pytest.raises(ConfigError, match="rows='all' models columns and label as jointly normal"):
        VerticalGLM("binomial", rows="all")


def test_one_party_alone_needs_sums():
    X, y, _ = pooled("binomial", n=200)
    with pytest.raises(ConfigError, match=r"family 'binomial' needs.*exchange='sums'"):
        run(X, y, sizes=(8,), family="binomial")
