"""Forests whose routing the server knows: scikit-learn's tree, and many that share rounds."""

import numpy as np
import pandas as pd
import pytest
from oracles import trees as oracle
from sklearn.tree import DecisionTreeRegressor
from tree_runs import make_labels, make_tables, pooled, splits_of

from flwr_vertical import simulate
from strategies.forest import VerticalForest

ONE = {
    "routing": "server",
    "n_trees": 1,
    "bootstrap": False,
    "colsample": 1.0,
    "n_bins": 12,
    "min_child": 8,
}


def whole_tables():
    """Without missing cells and levels, which scikit-learn's trees treat otherwise."""
    tables = make_tables(seed=11)
    return {
        name: table.select_dtypes("number").reindex(range(400)).fillna(0.0).add(0.0)
        for name, table in tables.items()
    }


def test_one_tree_is_that_of_scikit_learn():
    tables = whole_tables()
    labels = make_labels(make_tables(seed=11), "regression", seed=12)
    strategy = VerticalForest(**ONE, objective="regression", max_depth=4, histograms="open")
    result = simulate(strategy, tables, labels, progress=False)
    codes, _, _ = pooled(tables)
    tree = DecisionTreeRegressor(max_depth=4, min_samples_leaf=8, random_state=0)
    expected = tree.fit(codes, labels).predict(codes)
    found = result.predict(tables, progress=False).predictions["prediction"]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert result.metrics["train_loss"] == pytest.approx(np.mean((expected - labels) ** 2) / 2)


def test_one_tree_of_classes_is_the_central_one():
    """Its splits are by the Gini index, which for 0 and 1 is least squares."""
    tables = make_tables(seed=11)
    labels = make_labels(tables, seed=12)
    result = simulate(VerticalForest(**ONE, max_depth=4), tables, labels, progress=False)
    codes, bins, nominal = pooled(tables)
    expected = oracle.boost(
        codes, bins, labels.to_numpy(), "regression", 1, 4, 1.0, min_child=8, nominal=nominal
    )
    assert splits_of(result, 0) == expected.splits(0)
    found = result.predict(tables, progress=False).predictions["probability_1"]
    np.testing.assert_allclose(found, expected.raw[0], atol=1e-9)


def test_a_batch_shares_rounds_and_averages():
    tables = make_tables(seed=13)
    labels = make_labels(tables, seed=14)
    test = labels.copy()
    labels.iloc[::3] = np.nan
    settings = {"routing": "server", "n_bins": 12, "max_depth": 4, "min_child": 5}
    forest = VerticalForest(n_trees=12, batch=6, **settings)
    result = simulate(forest, tables, labels, progress=False)
    assert len(result.predictor.roots) == 12
    assert result.ledger.rounds == 2 + 4 + 3 * 4 * 2  # two batches
    found = result.predictions["probability_1"]
    assert list(found.index) == list(range(0, 400, 3))
    hits = (found > 0.5).to_numpy() == (test.iloc[::3] > 0.5).to_numpy()
    alone = max(test.mean(), 1 - test.mean())
    assert hits.mean() > alone + 0.05
    again = result.predict(tables, progress=False).predictions["probability_1"]
    np.testing.assert_allclose(again.iloc[::3], found, rtol=1e-12)


def test_shares_of_several_classes_add_up_to_one():
    tables = make_tables(seed=15)
    labels = make_labels(tables, "multiclass", seed=16)
    labels.iloc[:50] = np.nan
    settings = {"routing": "server", "n_bins": 8, "colsample": 1.0, "histograms": "open"}
    forest = VerticalForest(n_trees=2, max_depth=3, **settings)
    result = simulate(forest, tables, labels, progress=False)
    assert len(result.predictor.roots) == 6
    shares = result.predictions.filter(like="probability_")
    assert isinstance(shares, pd.DataFrame)
    assert shares.shape == (50, 3)
    assert ((shares >= 0) & (shares <= 1)).all(axis=None)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
