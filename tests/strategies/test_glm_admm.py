"""VFL-GLM-VS as printed: against scikit-learn, statsmodels and a literal LLA; rounds; noise."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from glm_runs import estimates, pooled, split
from oracles.glm import lla
from sklearn.linear_model import lasso_path
from vfem_runs import recorded

from flwr_vertical import simulate
from flwr_vertical.errors import DataError
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM

EXACT = {"tol": 1e-8, "max_iter": 5000}
SM = {
    "gaussian": sm.families.Gaussian,
    "binomial": sm.families.Binomial,
    "poisson": sm.families.Poisson,
}


def run(X, y, mode="plain", sizes=(3, 2, 3), **settings):
    tables, labels = split(X, y, sizes)
    return simulate(GLMADMM(**settings), tables, labels, aggregation=mode)


def steps(result):
    return result.ledger.to_frame().groupby("step")["round"].nunique().to_dict()


@pytest.mark.parametrize("strength", [pytest.param(0.3, marks=pytest.mark.slow), 0.05])
def test_a_lasso_is_that_of_scikit_learn(strength):
    X, y, _ = pooled("gaussian", seed=1)
    result = run(X, y, penalty="lasso", lambdas=strength, standardize=False, **EXACT)
    _, expected, _ = lasso_path(X - X.mean(axis=0), y - y.mean(), alphas=[strength], tol=1e-12)
    np.testing.assert_allclose(estimates(result)[1:], expected[:, 0], atol=1e-6)
    level = y.mean() - X.mean(axis=0) @ expected[:, 0]
    assert estimates(result)[0] == pytest.approx(level, abs=1e-6)


@pytest.mark.parametrize("family", SM)
def test_without_penalty_it_is_statsmodels(family):
    X, y, _ = pooled(family, seed=4)
    result = run(X, y, family=family, penalty=None, **EXACT)
    other = sm.GLM(y, sm.add_constant(X), SM[family]()).fit(tol=1e-12)
    np.testing.assert_allclose(estimates(result), other.params, atol=1e-5)
    assert result.metrics["log_likelihood"] == pytest.approx(other.llf, abs=1e-3)
    assert result.metrics["deviance"] == pytest.approx(other.deviance, rel=1e-6)
    assert result.model.outcome == "converged"


@pytest.mark.parametrize(
    ("family", "penalty"),
    [("binomial", "scad"), pytest.param("poisson", "mcp", marks=pytest.mark.slow)],
)
def test_concave_penalties_follow_the_literal_lla(family, penalty):
    X, y, _ = pooled(family, seed=6)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    settings = {"family": family, "penalty": penalty, "lambdas": 0.12, "lla_steps": 4}
    result = run(Z, y, standardize=False, **settings, **EXACT)
    expected = lla(Z, y, family, penalty, 0.12, {"scad": 3.7, "mcp": 3.0}[penalty], 4)
    np.testing.assert_allclose(estimates(result), expected, atol=1e-5)
    assert 0 < np.count_nonzero(expected[1:]) < Z.shape[1]


def test_one_party_and_one_column_each():
    X, y, _ = pooled("gaussian", sizes=(2, 1, 2), seed=13)
    settings = {"penalty": "lasso", "lambdas": 0.05, **EXACT}
    whole, parts = run(X, y, sizes=(5,), **settings), run(X, y, sizes=(1,) * 5, **settings)
    np.testing.assert_allclose(estimates(whole), estimates(parts), atol=1e-6)


def test_overlapping_parties_do_not_overshoot():
    """As printed, (4.4) has every party correct the whole residual: equal parties diverge."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 1)) + 0.3 * rng.standard_normal((300, 4))
    y = X @ np.r_[1.0, np.zeros(2), -1.0] + rng.standard_normal(300)
    settings = {"penalty": "lasso", "lambdas": 0.05, "tol": 1e-6, "max_iter": 5000}
    parts, whole = (run(X, y, sizes=sizes, **settings) for sizes in ((1,) * 4, (4,)))
    assert parts.model.outcome == "converged"
    np.testing.assert_allclose(estimates(parts), estimates(whole), atol=1e-3)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_columns_that_correlate_across_parties_end_near_the_limit(family):
    """Steps are short there: at a tolerance of 0.001 it ended after 15 rounds, far from it."""
    rng = np.random.default_rng(3)
    X = np.sqrt(0.95) * rng.standard_normal((400, 1)) + np.sqrt(0.05) * rng.standard_normal(
        (400, 6)
    )
    eta = X @ [1.0, 0.5, 0.0, -1.0, 0.0, 0.7] + 0.5
    y = eta + rng.standard_normal(400)
    if family == "binomial":
        y = (rng.random(400) < 1 / (1 + np.exp(-eta))).astype(float)
    other = sm.GLM(y, sm.add_constant(X), SM[family]()).fit(tol=1e-12)
    result = run(X, y, sizes=(3, 3), family=family, penalty=None)
    assert result.model.outcome == "converged"
    assert (np.abs(estimates(result) - other.params) < 0.35 * other.bse).all()


def test_a_path_is_chosen_from_as_by_glm_and_takes_one_round_a_step():
    X, y, _ = pooled("gaussian", n=400)
    full, y[-20:] = y.copy(), np.nan
    result, other = run(X, y, "masked"), None
    assert len(result.model.path) == 50
    found = steps(result)
    assert found.pop("admm") == result.metrics["iterations"] == result.model.path["rounds"].max()
    assert found == dict.fromkeys(("hello", "share_ids", "prepare", "begin", "count", "finish"), 1)
    assert result.metrics["iterations"] < 100
    frame = result.ledger.to_frame()
    up = frame[frame["step"] == "admm"].groupby("round")["values_up"].sum()
    assert up.iloc[-1] < up.iloc[0] / 2  # fits that have ended are not sent
    tables, labels = split(X, y)
    other = simulate(VerticalGLM(), tables, labels)
    assert ((estimates(result) != 0) == (estimates(other) != 0)).all()
    np.testing.assert_allclose(estimates(result), estimates(other), atol=0.02)
    predicted = result.predictions["prediction"]
    assert list(predicted.index) == [f"s{i:04}" for i in range(380, 400)]
    np.testing.assert_allclose(predicted, estimates(result) @ np.c_[np.ones(20), X[-20:]].T)
    assert np.corrcoef(predicted, full[-20:])[0, 1] > 0.8


def test_too_few_rounds_are_told():
    X, y, _ = pooled("binomial")
    result = run(X, y, family="binomial", lambdas=0.01, max_iter=3)
    assert result.model.outcome == "max iterations"
    assert any("not converged after 3 rounds" in note for note in result.notes)
    assert result.metrics["converged"] == 0
    assert len(result.history) == 3


def test_rows_columns_and_labels_that_cannot_be_used(caplog):
    X, y, _ = pooled("gaussian")
    X[:, 4] = 3.0
    tables, labels = split(X, y)
    tables["p1"] = tables["p1"][50:]
    strategy = GLMADMM(lambdas=0.1)
    result = simulate(strategy, tables, labels)
    assert "50 of 300 labelled samples" in caplog.text
    assert np.isnan(result.coefficients.loc[("p1", "x4"), "estimate"])
    assert any("columns ['x4'] do not vary" in note for note in result.notes)
    other = run(X[50:], y[50:], lambdas=0.1)
    np.testing.assert_allclose(estimates(result), estimates(other), atol=1e-7)
    tables["p0"] = tables["p0"][:50]
    with pytest.raises(DataError, match="all parties hold 0 of 300 labelled samples"):
        simulate(strategy, tables, labels)
    with pytest.raises(DataError, match="penalty='none' needs at least 10"):
        run(X[:9], y[:9], penalty=None)
    same = pd.Series(np.ones(300), index=labels.index)
    with pytest.raises(DataError, match="all 300 labels are the same"):
        simulate(strategy, split(X, y)[0], same)


def test_the_first_residuals_show_the_labels_as_the_disclosure_says():
    X, y, _ = pooled("binomial", n=100, seed=3)
    tables, labels = split(X, y)
    agreed = {name: {"exchanges": "sums"} for name in tables}
    strategy = GLMADMM("binomial", "lasso", lambdas=0.02)
    found = recorded(tables, labels, strategy=strategy, configs=agreed)
    first = next(m for m in found.messages if not m.up and m.step == "begin")
    np.testing.assert_allclose(first.arguments["residual"], y - y.mean(), atol=1e-12)
    said = " ".join(what for who, what in GLMADMM.disclosure if who.startswith("every party"))
    assert "the first shows the labels" in said


def test_noise_costs_what_the_ledger_says_and_protects_no_row():
    X, y, _ = pooled("gaussian", n=2000)
    settings = {"penalty": "lasso", "lambdas": 0.1, "max_iter": 20}
    results = {epsilon: run(X, y, epsilon=epsilon, **settings) for epsilon in (0.5, 1e4)}
    clean = run(X, y, penalty="lasso", lambdas=0.1, tol=1e-6)
    error = {
        epsilon: np.abs(estimates(result) - estimates(clean)).max()
        for epsilon, result in results.items()
    }
    assert error[1e4] < 0.1 < error[0.5]
    ledger = results[0.5].ledger
    assert set(ledger.epsilon) == {"p0", "p1", "p2"}
    assert 0.5 < ledger.epsilon["p0"] < 20 * 0.5
    assert results[0.5].metrics["iterations"] == 20
    assert any("protects no row" in note for note in results[0.5].notes)
    again = run(X, y, epsilon=0.5, **settings)
    assert not np.array_equal(estimates(results[0.5]), estimates(again))
