"""What the paper's iterations cost: one round each, all values of lambda in the same ones."""

import numpy as np
import pytest
from glm_runs import pooled
from glm_runs import run_sums as run

from flwr_vertical import simulate
from simulations.copula.design import draw_copula
from simulations.copula.preset import Preset
from simulations.study import Options
from strategies.glm import VerticalGLM, fit_glm
from strategies.glm.sums.fits import CONVERGED, PASSED_OVER


@pytest.fixture(scope="module")
def design(tmp_path_factory):
    return Preset.load(Options(tmp_path_factory.mktemp("preset")))["design"]


@pytest.fixture(scope="module")
def study(design):
    """One sample of the study, by model."""
    return {model: draw_copula(design, model=model, rows=600) for model in ("linear", "logistic")}


def steps(result):
    frame = result.ledger.to_frame()
    return frame.groupby("step")["round"].nunique().to_dict()


def fit(sample, model, **settings):
    family = "gaussian" if model == "linear" else "binomial"
    strategy = VerticalGLM(family=family, exchange="sums", standard_errors=None, **settings)
    return simulate(strategy, sample.tables, sample.labels, aggregation="plain", progress=False)


@pytest.mark.parametrize(("model", "penalty"), [("linear", "scad"), ("logistic", "lasso")])
def test_a_path_takes_hardly_more_rounds_than_one_lambda(study, model, penalty):
    path = fit(study[model], model, penalty=penalty, n_lambdas=50)
    one = fit(study[model], model, penalty=penalty, lambdas=path.metrics["lambda"])
    assert len(path.model.path) == 50
    assert set(path.model.path["outcome"]) <= {CONVERGED, PASSED_OVER}
    assert path.metrics["converged"] == one.metrics["converged"] == 1
    assert steps(path)["admm"] == path.metrics["iterations"]
    assert path.ledger.rounds <= 1.2 * one.ledger.rounds
    assert path.metrics["iterations"] <= 60


def test_a_path_that_is_wanted_whole_is_iterated_to_its_end(study):
    """All 50 fits, also those that BIC would give up."""
    model = "logistic"
    lambdas = np.geomspace(0.5, 0.005, 50) * study[model].labels.std()
    path = fit(study[model], model, penalty="lasso", lambdas=lambdas)
    rounds = path.model.path["rounds"]
    assert set(path.model.path["outcome"]) == {CONVERGED}
    assert path.metrics["iterations"] == rounds.max() <= 60
    one = fit(study[model], model, penalty="lasso", lambdas=float(rounds.idxmax()))
    assert path.ledger.rounds == one.ledger.rounds


def test_the_papers_tolerances_are_met_early(study):
    """Within 200 rounds was aimed at; optimality is asked for beyond them."""
    model = "linear"
    path = fit(study[model], model, penalty="lasso", lambdas=[0.3, 0.1, 0.03, 0.01, 0.001])
    assert 0 < path.model.path["tolerated"].max() <= 40
    assert (path.model.path["tolerated"] <= path.model.path["rounds"]).all()


def test_every_other_step_is_one_round():
    X, y, _ = pooled("gaussian")
    y[-5:] = np.nan
    found = steps(run(X, y, "masked"))
    iterations = found.pop("admm")
    assert found == dict.fromkeys(
        ("hello", "share_ids", "prepare", "begin", "finish", "pair_key", "rotate_selected"), 1
    )
    assert "pair_key" not in steps(run(X, y, "masked", standard_errors=None))
    assert iterations < 100


def test_fits_that_have_ended_are_not_sent():
    X, y, _ = pooled("gaussian")
    result = run(X, y, lambdas=np.geomspace(3, 0.01, 10), standard_errors=None)
    frame = result.ledger.to_frame()
    up = frame[frame["step"] == "admm"].groupby("round")["values_up"].sum()
    assert up.iloc[-1] < up.iloc[0] / 2
    assert result.model.path["rounds"].max() == result.metrics["iterations"]


def test_overlapping_parties_do_not_overshoot():
    """As printed, (4.4) has every party correct the whole residual: equal parties diverge."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal((300, 1))
    X = common + 0.3 * rng.standard_normal((300, 8))
    y = X @ np.r_[1.0, np.zeros(6), -1.0] + rng.standard_normal(300)
    fit = fit_glm(np.split(X, 8, axis=1), y, penalty="lasso", lambdas=0.05, max_iter=2000)
    assert fit.fits.outcomes == [CONVERGED]
    whole = fit_glm([X], y, penalty="lasso", lambdas=0.05, kkt_tol=1e-6, max_iter=2000)
    np.testing.assert_allclose(fit.beta, whole.beta, atol=5e-3)
