"""Losses, class weights and what is held out: beside scikit-learn, LightGBM and differences."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import mean_pinball_loss, mean_tweedie_deviance
from tree_runs import SMALL, fit, make_labels, make_tables, pooled

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, DataError
from strategies.trees import VerticalGBDT
from strategies.trees.boosting import validation_rows
from strategies.trees.objectives import Objective, weights_of

OPEN = {"histograms": "open", "n_trees": 15}


def numbers(seed=1):
    """Tables without levels, their codes as scikit-learn takes them."""
    tables = {
        name: own.drop(columns=[f"{name[0]}9"]) for name, own in make_tables(seed=seed).items()
    }
    codes, bins, _ = pooled(tables)
    return tables, np.where(codes == np.array(bins), np.nan, codes)


def as_central(kind, x, y, **settings):
    model = kind(
        max_iter=OPEN["n_trees"], max_depth=SMALL["max_depth"], max_leaf_nodes=None,
        min_samples_leaf=SMALL["min_child"], early_stopping=False, **settings,
    )  # fmt: skip
    return model.fit(x, y)


def test_quantiles_are_those_of_scikit_learn():
    tables, x = numbers()
    labels = make_labels(make_tables(seed=1), "regression", seed=2)
    labels += np.random.default_rng(5).exponential(2.0, len(labels))
    two, many = (
        fit(tables, labels, objective="quantile", quantile=0.9, **{**OPEN, "n_trees": n})
        for n in (2, OPEN["n_trees"])
    )
    found = two.predict(tables, labels).predictions["prediction"]
    model = as_central(HistGradientBoostingRegressor, x, labels, loss="quantile", quantile=0.9)
    first = list(model.staged_predict(x))[1]
    # Gradients have two values, so gains often tie, and ties are broken otherwise; here none does.
    np.testing.assert_allclose(found, first, atol=1e-6)
    found = many.predict(tables, labels).predictions["prediction"]
    own, other = (mean_pinball_loss(labels, p, alpha=0.9) for p in (found, model.predict(x)))
    assert own == pytest.approx(other, rel=0.02)
    assert many.metrics["train_loss"] == pytest.approx(own, rel=1e-12)
    assert abs(np.mean(labels <= found) - 0.9) < 0.05


def test_amounts_are_those_of_lightgbm():
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(5)
    tables = {
        name: pd.DataFrame(rng.normal(size=(400, 3)), columns=[f"{name}{j}" for j in range(3)])
        for name in ("bank", "court")
    }
    mean = np.exp(0.6 * tables["bank"]["bank0"] + 0.4 * tables["court"]["court1"])
    labels = pd.Series(rng.poisson(mean) * rng.gamma(2.0, 1.0, 400))
    # LightGBM estimates numbers of rows by weights where these differ, so no number binds here.
    result = fit(
        tables, labels, objective="tweedie", tweedie_power=1.3, max_depth=3, min_child=1, **OPEN
    )
    found = result.predict(tables, labels).predictions["prediction"]
    codes, _, _ = pooled(tables)
    model = lightgbm.LGBMRegressor(
        objective="tweedie", tweedie_variance_power=1.3, n_estimators=OPEN["n_trees"], max_depth=3,
        num_leaves=8, learning_rate=0.1, min_child_samples=1, min_child_weight=0, verbose=-1,
        min_data_in_bin=1, n_jobs=1,
    ).fit(codes, labels)  # fmt: skip
    np.testing.assert_allclose(found, model.predict(codes), rtol=1e-6)
    assert mean_tweedie_deviance(labels, found, power=1.3) < 0.8 * mean_tweedie_deviance(
        labels, np.full(400, labels.mean()), power=1.3
    )


@pytest.mark.parametrize(
    "objective",
    [
        Objective("tweedie", parameter=1.2),
        Objective("tweedie", parameter=1.9),
        Objective("poisson"),
    ],
)
def test_derivatives_are_differences_of_the_loss(objective):
    rng = np.random.default_rng(3)
    labels, raw, step = rng.gamma(1.0, 2.0, 50), rng.normal(size=(1, 50)), 1e-4
    losses = [
        np.array([objective.loss(labels[[i]], raw[:, [i]] + by) for i in range(50)])
        for by in (-step, 0.0, step)
    ]
    g, h = objective.gradients(labels, raw)
    np.testing.assert_allclose(g[0], (losses[2] - losses[0]) / (2 * step), rtol=1e-6, atol=1e-7)
    second = (losses[2] - 2 * losses[1] + losses[0]) / step**2
    np.testing.assert_allclose(h[0], second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stated", ["balanced", pytest.param("1, 3.5", marks=pytest.mark.slow)])
def test_class_weights_are_those_of_scikit_learn(stated):
    tables, x = numbers()
    labels = make_labels(make_tables(seed=1), seed=2)
    result = fit(tables, labels, class_weights=stated, **OPEN)
    found = result.predict(tables, labels).predictions["probability_1"]
    weight = "balanced" if stated == "balanced" else {0: 1.0, 1: 3.5}
    model = as_central(HistGradientBoostingClassifier, x, labels, class_weight=weight)
    np.testing.assert_allclose(found, model.predict_proba(x)[:, 1], atol=1e-5)
    assert (found.mean() > labels.mean() + 0.1) == (stated != "balanced")  # as stated


def test_weights_of_several_classes():
    labels = np.array([0.0, 0, 0, 1, 2, 2, np.nan])
    objective = Objective("multiclass", 3)
    found = weights_of("balanced", objective, labels)
    np.testing.assert_allclose(found, [6 / 9] * 3 + [2] + [1] * 2 + [1])
    np.testing.assert_allclose(objective.start(labels[:6], found[:6]), 0.0, atol=1e-12)
    for stated in ("1, 2", "1, 2, 0", "1, 2, x", "equal"):
        with pytest.raises(ConfigError, match="or 3 numbers above 0, one for each class"):
            weights_of(stated, objective, labels)
    # Shares of few samples: leaves would count as empty, and no tree would have a split.
    for small, of in (("1e-4, 2e-4, 1e-4", objective), ("1e-5, 1e-2", Objective("binary", 2))):
        given = labels if of is objective else np.repeat([0.0, 1.0], [9990, 10])
        with pytest.raises(ConfigError, match="leaves would count as empty; multiply"):
            weights_of(small, of, given)
    assert weights_of("1e-3, 1e-3, 1e-3", objective, labels)[0] == 1e-3
    with pytest.raises(ConfigError, match="objective 'poisson' has no classes"):
        weights_of("balanced", Objective("poisson"), labels)


def test_what_is_held_out_has_the_shares_of_classes():
    labels = np.repeat([0.0, 1.0, np.nan], [900, 100, 50])
    known = np.random.default_rng(0).permutation(1000)
    rows = validation_rows(known, labels, 0.2, 960)
    assert len(np.unique(rows)) == 200
    assert labels[rows].sum() == 20
    np.testing.assert_array_equal(validation_rows(known, labels, None, 960), rows)
    assert not len(validation_rows(known, labels, 0.0, 960))
    assert len(validation_rows(known, labels, 0.99, 960)) == 960
    many = np.tile([0.0, 1.0], 50_000)
    assert len(validation_rows(np.arange(100_000), many, None, 99_960)) == 2_000
    other = validation_rows(np.random.default_rng(1).permutation(1000), labels, 0.2, 960)
    assert 20 < len(np.intersect1d(rows, other)) < 60  # drawn, not the same ones


@pytest.mark.parametrize(
    ("objective", "power", "unit", "fits"),
    [
        ("regression", 0.0, 1e200, False), ("regression", 0.0, 1e-200, False),
        ("regression", 0.0, 1e100, True), ("quantile", 0.5, 1e-300, True),
        ("mean", 0.0, 1e300, True), ("poisson", 0.0, 1e-6, False), ("poisson", 0.0, 1e-3, True),
        ("tweedie", 1.5, 1e-6, True), ("tweedie", 1.5, 1e-9, False),
    ],
)  # fmt: skip
def test_labels_whose_leaves_would_be_wrong_are_refused(objective, power, unit, fits):
    labels = unit * np.abs(np.random.default_rng(0).normal(size=50))
    if fits:
        assert Objective.of(objective, labels, power).name == objective
    else:
        with pytest.raises(DataError, match="give labels in"):
            Objective.of(objective, labels, power)
    # Counts may be rare.
    assert Objective.of("poisson", 1.0 * (np.arange(100_000) < 3)).name == "poisson"


def test_labels_and_directions_that_cannot_be():
    tables = make_tables()
    labels = make_labels(tables, "regression")
    with pytest.raises(DataError, match="objective 'tweedie' needs labels of 0 and above"):
        fit(tables, labels, objective="tweedie")
    with pytest.raises(ConfigError, match="nor quantiles, whose leaves are fitted anew"):
        simulate(
            VerticalGBDT(**SMALL, objective="quantile", histograms="open"), tables, labels,
            node_config={"bank": {"trees.monotone.b0": 1}},
        )  # fmt: skip
