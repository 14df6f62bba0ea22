"""What VerticalGLM costs: one round an iteration, all values of lambda in the same ones."""

import numpy as np
import pytest
from glm_runs import pooled, run

from flwr_vertical import simulate
from simulations.copula.design import draw_copula
from simulations.copula.preset import Preset
from simulations.study import Options
from strategies.glm import VerticalGLM, fit_glm
from strategies.glm.solver import CONVERGED


@pytest.fixture(scope="module")
def design(tmp_path_factory):
    return Preset.load(Options(tmp_path_factory.mktemp("preset")))["design"]


@pytest.fixture(scope="module")
def study(design):
    """One sample of the study, by model."""
    return {model: draw_copula(design, model=model, rows=2000) for model in ("linear", "logistic")}


def steps(result):
    frame = result.ledger.to_frame()
    return frame.groupby("step")["round"].nunique().to_dict()


@pytest.mark.parametrize(
    ("model", "penalty"), [("linear", "scad"), ("linear", "lasso"), ("logistic", "scad")]
)
def test_a_path_takes_hardly_more_rounds_than_one_lambda(study, model, penalty):
    sample = study[model]
    family = "gaussian" if model == "linear" else "binomial"
    settings = {"family": family, "penalty": penalty, "standard_errors": None}
    path = simulate(
        VerticalGLM(**settings, n_lambdas=50), sample.tables, sample.labels,
        aggregation="plain", progress=False,
    )  # fmt: skip
    assert len(path.model.path) == 50
    assert set(path.model.path["outcome"]) == {CONVERGED}
    one = simulate(
        VerticalGLM(**settings, lambdas=path.metrics["lambda"]), sample.tables, sample.labels,
        aggregation="plain", progress=False,
    )  # fmt: skip
    assert steps(path)["admm"] == path.metrics["iterations"]
    assert path.ledger.rounds <= 1.2 * one.ledger.rounds
    # The paper's tolerances, and the conditions of optimality beyond them.
    assert path.model.path["tolerated"].max() <= 60
    assert path.metrics["iterations"] <= 200


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
    X = common + 0.3 * rng.standard_normal((300, 12))
    y = X @ np.r_[1.0, np.zeros(10), -1.0] + rng.standard_normal(300)
    fit = fit_glm(np.split(X, 12, axis=1), y, penalty="lasso", lambdas=0.05, max_iter=2000)
    assert fit.fits.outcomes == [CONVERGED]
    whole = fit_glm([X], y, penalty="lasso", lambdas=0.05, kkt_tol=1e-6, max_iter=2000)
    np.testing.assert_allclose(fit.beta, whole.beta, atol=5e-3)
