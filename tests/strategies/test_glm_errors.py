"""Bad input and settings of VerticalGLM; of its iterations where runs are made."""

import numpy as np
import pandas as pd
import pytest
from glm_runs import estimates, pooled, split
from glm_runs import run_sums as run

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from strategies.glm import VerticalGLM


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"family": "gamma"}, "unknown family 'gamma'"),
        ({"penalty": "ridge"}, "unknown penalty 'ridge'"),
        ({"lambdas": []}, "lambdas is empty"),
        ({"lambdas": ""}, "lambdas is empty"),
        ({"lambdas": [0.1, -1]}, "numbers of at least 0, or 'bic', got -1"),
        ({"lambdas": "aic"}, "numbers of at least 0, or 'bic', got 'aic'"),
        ({"penalty_shape": 1.5}, "penalty_shape of 'scad' must be above 2"),
        ({"lla_steps": 0}, "lla_steps must be an integer of at least 1"),
        ({"max_iter": 1.5}, "max_iter must be an integer"),
        ({"intercept": "false"}, "intercept must be true or false"),
        ({"kkt_tol": 0}, "kkt_tol must be a number above 0 and below 1, got 0"),
        ({"lambda_ratio": 2}, "lambda_ratio must be a number above 0 and below 1, got 2"),
        ({"dp": "laplace"}, "unknown dp 'laplace'"),
        ({"epsilon": 0.0}, "epsilon must be a number above 0, got 0.0"),
        ({"standard_errors": "expected"}, "unknown standard_errors 'expected'"),
        ({"encoding": "hash"}, "unknown encoding"),
    ],
)
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(ConfigError, match=said):
        VerticalGLM(**settings)


def test_tangents_are_counted_with_sums_alone():
    with pytest.raises(ConfigError, match="lla_steps=5: only of the iterations of exchange='sums'"):
        VerticalGLM(lla_steps=5)
    assert VerticalGLM(exchange="sums", lla_steps=5).lla_steps == 5


def test_settings_have_a_plain_form():
    strategy = VerticalGLM(penalty=None, lambdas=np.array([0.5, 0.25]), unpenalized=["a:b", "c:d"])
    assert strategy.settings()["lambdas"] == "0.5,0.25"
    assert (strategy.penalty, strategy.unpenalized) == ("none", "a:b,c:d")
    assert VerticalGLM(lambdas="0.1").lambdas == "0.1"
    assert VerticalGLM(lambdas=0.1).lambdas == 0.1
    assert VerticalGLM(lambdas="BIC").lambdas == "bic"


@pytest.mark.parametrize(
    ("family", "labels", "said"),
    [
        ("poisson", [-1.0, 0, 2], "needs counts 0, 1, 2, ... as labels, got a label of -1"),
        ("poisson", [0.5, 0, 2], "got a label of 0.5"),
        ("binomial", [1.0, 2, 1], "needs labels 0 and 1, got 2 different \\(1, 2\\)"),
        ("binomial", [0.0, 1, 3], "got 3 different"),
    ],
)
def test_labels_that_cannot_be_of_the_family(family, labels, said):
    X, y, _ = pooled("gaussian")
    y[:] = np.resize(labels, len(y))
    with pytest.raises(DataError, match=said):
        run(X, y, family=family)


def test_no_sample_in_common():
    X, y, _ = pooled("gaussian")
    tables, labels = split(X, y)
    tables["p0"], tables["p1"] = tables["p0"][:150], tables["p1"][150:]
    with pytest.raises(DataError, match="hold 0 of the 300 labelled samples in common"):
        simulate(VerticalGLM(exchange="sums"), tables, labels, progress=False)


def test_too_few_samples_without_a_penalty():
    X, y, _ = pooled("gaussian", n=9)
    with pytest.raises(DataError, match="8 columns need at least 10"):
        run(X, y, penalty=None)
    assert run(X, y, penalty="lasso").metrics["converged"] == 1


def test_samples_that_a_party_lacks_are_left_out(caplog):
    X, y, _ = pooled("gaussian")
    tables, labels = split(X, y)
    tables["p1"] = tables["p1"][50:]
    result = simulate(VerticalGLM(exchange="sums", lambdas=0.1), tables, labels, progress=False)
    assert "50 of 300 labelled samples are left out" in caplog.text
    assert any("50 of 300" in note for note in result.notes)
    other = run(X[50:], y[50:], lambdas=0.1)
    np.testing.assert_allclose(estimates(result), estimates(other), atol=1e-7)


def test_separable_labels_are_named():
    X, y, _ = pooled("binomial", seed=3)
    y[:] = X[:, 1] > np.median(X[:, 1])
    result = run(X, y, family="binomial", penalty=None)
    assert result.model.outcome == "separated"
    assert result.coefficients is None
    assert result.metrics["converged"] == 0
    assert any(note.startswith("separated: ") for note in result.notes)
    bounded = run(X, y, family="binomial", penalty="lasso", lambdas=0.05)
    assert bounded.model.outcome == "converged"
    assert np.abs(estimates(bounded)).max() < 20


def test_constant_columns_have_no_effect(caplog):
    X, y, _ = pooled("gaussian")
    X[:, 4] = 3.0
    for penalty in ("scad", None):
        result = run(X, y, penalty=penalty)
        assert np.isnan(result.coefficients.loc[("p1", "x4"), "estimate"])
        assert any("columns ['x4'] do not vary" in note for note in result.notes)
    other = run(np.delete(X, 4, axis=1), y, sizes=(3, 1, 3), penalty=None, kkt_tol=1e-6)
    whole = run(X, y, penalty=None, kkt_tol=1e-6)
    np.testing.assert_allclose(np.delete(estimates(whole), 5), estimates(other), atol=1e-4)


def test_columns_that_determine_each_other_have_no_standard_errors():
    X, y, _ = pooled("gaussian")
    X[:, 5] = X[:, 0]
    result = run(X, y, penalty=None)
    assert any(note.startswith("no standard errors") for note in result.notes)
    fits = X @ estimates(result)[1:] + estimates(result)[0]
    D = np.column_stack([np.ones(len(y)), X])
    np.testing.assert_allclose(fits, D @ np.linalg.lstsq(D, y)[0], atol=1e-2)


def test_too_few_rounds_are_told():
    X, y, _ = pooled("binomial")
    result = run(X, y, family="binomial", lambdas=0.01, max_iter=3)
    assert result.model.outcome == "max iterations"
    assert any("not converged after 3 rounds" in note for note in result.notes)
    assert result.metrics["converged"] == 0
    assert len(result.history) == 3


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        ("x3", ConfigError, "'party:column', got 'x3'"),
        ("bank:x3", ConfigError, "got 'bank:x3'; the parties are"),
        ("p1:x9", PartyError, "no columns \\['x9'\\] to leave unpenalised"),
    ],
)
def test_unpenalised_columns_must_be_there(names, error, said):
    X, y, _ = pooled("gaussian")
    with pytest.raises(error, match=said):
        run(X, y, unpenalized=names)


def test_missing_cells_and_levels_are_refused_with_a_way_out():
    X, y, _ = pooled("gaussian")
    tables, labels = split(X, y)
    tables["p0"].iloc[4, 1] = np.nan
    with pytest.raises(PartyError, match="missing_cells='drop-row'"):
        simulate(VerticalGLM(exchange="sums"), tables, labels, progress=False)
    result = simulate(
        VerticalGLM(exchange="sums", missing_cells="drop-row", lambdas=0.1),
        tables,
        labels,
        progress=False,
    )
    assert result.metrics["n_samples"] == 299
    tables["p1"] = tables["p1"].assign(town=pd.Categorical(["Ulm", "Delft"] * 150))
    with pytest.raises(PartyError, match="encoding='one-hot'"):
        simulate(
            VerticalGLM(exchange="sums", missing_cells="drop-row"), tables, labels, progress=False
        )


def test_noise_costs_what_the_ledger_says():
    X, y, _ = pooled("gaussian", n=2000)
    results = {
        epsilon: run(X, y, dp="admm", epsilon=epsilon, lambdas=0.1, dp_rounds=8)
        for epsilon in (0.5, 1e4)
    }
    clean = run(X, y, lambdas=0.1, tol=1e-6)
    error = {
        epsilon: np.abs(estimates(result) - estimates(clean)).max()
        for epsilon, result in results.items()
    }
    assert error[1e4] < 0.1 < error[0.5]
    ledger = results[0.5].ledger
    assert set(ledger.epsilon) == {"p0", "p1", "p2"}
    assert 0.5 < ledger.epsilon["p0"] < 8 * 0.5
    assert results[0.5].metrics["iterations"] == 8
    # Nothing that noise does not cover is asked for.
    assert not {"pair_key", "rotate_selected"} & set(ledger.to_frame()["step"])
    assert not np.array_equal(
        estimates(run(X, y, dp="admm", lambdas=0.1, dp_rounds=8)),
        estimates(run(X, y, dp="admm", lambdas=0.1, dp_rounds=8)),
    )


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_labels_that_are_all_the_same(family):
    from strategies.glm.sums.central import fit_glm

    x = np.random.default_rng(0).normal(size=(40, 3))
    table, same = pd.DataFrame(x, columns=["a", "b", "c"]), pd.Series(np.ones(40))
    with pytest.raises(DataError, match="all 40 labels are the same"):
        simulate(VerticalGLM(family, exchange="sums"), {"bank": table}, same, progress=False)
    with pytest.raises(DataError, match="labels of all 40 samples of the fit are the same"):
        fit_glm([x], same.to_numpy(), family)
