"""Bad input and settings of VerticalGLM, and what is said of them."""

import numpy as np
import pandas as pd
import pytest
from glm_runs import estimates, pooled, run, split

from flwr_vertical import make_strategy, simulate
from flwr_vertical.errors import ConfigError, DataError, PartyError
from strategies.glm import VerticalGLM


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"family": "gamma"}, "unknown family 'gamma'"),
        ({"penalty": "elastic"}, "unknown penalty 'elastic'"),
        ({"lambdas": []}, "lambdas is empty"),
        ({"lambdas": ""}, "lambdas is empty"),
        ({"lambdas": [0.1, -1]}, "numbers of at least 0, or 'bic', got -1"),
        ({"lambdas": "aic"}, "numbers of at least 0, or 'bic', got 'aic'"),
        ({"l2": -1.0}, "l2 must be a number of at least 0"),
        ({"intercept": "false"}, "intercept must be true or false"),
        ({"encoding": "hash"}, "unknown encoding"),
    ],
)
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(ConfigError, match=said):
        VerticalGLM(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"exchange": "sums"}, "the paper's iterations are strategy 'glm-admm'"),
        ({"dp": "moments"}, "set epsilon and bounds"),
        ({"n_lambdas": 3}, "state lambdas="),
    ],
)
def test_settings_that_went_name_what_to_use(settings, said):
    with pytest.raises(TypeError, match=said):
        VerticalGLM(**settings)


def test_lr_is_named_what_it_is_now():
    with pytest.raises(ConfigError, match="'glm' with family='binomial' and penalty='ridge'"):
        make_strategy("lr", {})


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
        ("binomial", [1.0], "all 300 labels are the same"),
    ],
)
def test_labels_that_cannot_be_of_the_family(family, labels, said):
    X, y, _ = pooled("gaussian")
    y[:] = np.resize(labels, len(y))
    with pytest.raises(DataError, match=said):
        run(X, y, family=family)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_an_unpenalised_column_has_no_ridge(family):
    X, y, _ = pooled(family, n=500, seed=3)
    given = {"family": family, "penalty": "ridge", "l2": 1e5}
    bound, free = run(X, y, **given), run(X, y, **given, unpenalized="p1:x4")
    assert np.abs(estimates(bound)[1:]).max() < 0.01
    table = free.coefficients["estimate"]
    assert abs(table[("p1", "x4")]) > 0.05
    assert np.abs(table.drop([("p1", "x4"), ("server", "intercept")])).max() < 0.01
    assert "std_error" not in free.coefficients


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("x3", "'party:column', got 'x3'"),
        ("bank:x3", "got 'bank:x3'; the parties are"),
        ("p1:x9", "no columns \\['x9'\\] to leave unpenalised"),
    ],
)
def test_unpenalised_columns_must_be_there(names, said):
    X, y, _ = pooled("gaussian")
    with pytest.raises(ConfigError, match=said):
        run(X, y, unpenalized=names)


def test_missing_cells_and_levels_are_refused_with_a_way_out():
    X, y, _ = pooled("gaussian")
    tables, labels = split(X, y)
    tables["p0"].iloc[4, 1] = np.nan
    with pytest.raises(PartyError, match="missing_cells='drop-row'"):
        simulate(VerticalGLM(), tables, labels, progress=False)
    strategy = VerticalGLM(missing_cells="drop-row", lambdas=0.1)
    result = simulate(strategy, tables, labels, progress=False)
    assert result.metrics["n_samples"] == 299
    tables["p1"] = tables["p1"].assign(town=pd.Categorical(["Ulm", "Delft"] * 150))
    with pytest.raises(PartyError, match="encoding='one-hot'"):
        simulate(strategy, tables, labels, progress=False)
