"""Partial dependence from splits and leaves: scikit-learn's, and what a party keeps of it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import partial_dependence as theirs
from tree_runs import SMALL, fit, make_labels, make_tables, pooled

from apps.dependence_section import dependence_section
from flwr_vertical.node.memory_storage import MemoryStorage


@pytest.fixture
def kept(monkeypatch):
    """What parties keep beside their tables."""
    found, save = {}, MemoryStorage.save

    def saved(storage, context, frame, beside=""):
        found[storage.party_name(context), beside] = frame
        return save(storage, context, frame, beside)

    monkeypatch.setattr(MemoryStorage, "save", saved)
    return found


def step_of(labels):
    return 2.0 ** np.floor(np.log2(labels.std(ddof=0) / 32))


@pytest.mark.parametrize("gap", [3.0, 0.1])  # of the leaves' logarithms
@pytest.mark.parametrize("objective", ["quantile", "regression"])
def test_no_leaf_tells_a_label_to_all_digits(kept, objective, gap):
    """A party whose table makes leaves as it likes: a median is a label, two sums differ by one."""
    rng, n, sums = np.random.default_rng(0), 600, []
    flag = (np.arange(n) < 61).astype(float)
    labels = pd.Series(np.exp(8 + gap * flag + rng.normal(size=n)).round(2))
    one = {"n_trees": 1, "max_depth": 1, "learning_rate": 1.0, "validation_share": 0.0, "l2": 0.0}
    for flag[100], rows in ((0.0, 61), (1.0, 62)):
        tables = {"bank": pd.DataFrame({"flag": flag}), "court": pd.DataFrame({"x": labels * 0})}
        fit(tables, labels, dependence=True, objective=objective, **{**one, "min_child": 20})
        told = kept["bank", "partial-dependence"]["prediction"].to_numpy()
        assert np.ptp(told) > 1e4 * (gap > 1.0)
        assert np.abs(told[:, None] - labels.to_numpy()).min() > 0.005
        np.testing.assert_array_equal(told % step_of(labels), 0.0)
        sums.append(rows * told.max())
    if objective == "regression" and gap > 1.0:  # without steps it is the label
        assert abs(sums[1] - sums[0] - labels[100]) > 1000


def test_it_is_that_of_scikit_learn(kept):
    tables = {name: own.drop(columns=[f"{name[0]}9"]) for name, own in make_tables(seed=1).items()}
    labels = make_labels(make_tables(seed=1), "regression", seed=2)
    settings = {"objective": "regression", "n_trees": 10, "histograms": "open"}
    fit(tables, labels, dependence=True, **settings)
    codes, bins, _ = pooled(tables)
    x = np.where(codes == np.array(bins), np.nan, codes)
    model = HistGradientBoostingRegressor(
        max_iter=10, max_depth=SMALL["max_depth"], max_leaf_nodes=None, early_stopping=False,
        min_samples_leaf=SMALL["min_child"],
    ).fit(x, labels)  # fmt: skip
    own = pd.concat([kept[name, "partial-dependence"] for name in ("bank", "court")])
    near, step = [], step_of(labels)
    for j, (name, curve) in enumerate(own.groupby("column", sort=False)):
        grid = {j: np.arange(float(bins[j]))}
        found = theirs(model, x, [j], method="recursion", custom_values=grid)
        average = labels.mean() + found["average"][0]  # without what boosting begins with
        average = np.rint(average / step) * step
        near += (np.abs(curve["prediction"][:-1] - average) < 1e-6).tolist()
        assert curve["values"].iloc[-1] == "missing"
        assert name == [*tables["bank"], *tables["court"]][j]
    # A bin that no row of a node is in goes to either side of its split, as a booster likes.
    assert np.mean(near) > 0.95
    kept.clear()
    fit(tables, labels, **settings)
    assert not kept  # not unless it is asked for


def test_levels_and_classes(kept):
    tables = make_tables()
    fit(tables, make_labels(tables), dependence=True)  # sorted: c9 == "v" has the larger chance
    curve = kept["court", "partial-dependence"].set_index(["column", "values"])["prediction"]
    assert curve["c9"].drop(index="missing").idxmax() == "v"
    assert set(curve["c9"].index) == {*"uvwxy", "missing"}
    classes = make_labels(tables, "multiclass")
    fit(tables, classes, objective="multiclass", dependence=True, n_trees=1)
    table = kept["bank", "partial-dependence"]
    assert list(table)[2:] == ["prediction_0", "prediction_1", "prediction_2"]


def test_bins_of_numbers_far_from_zero_are_told_apart(kept):
    tables = make_tables()
    numbers = tables["bank"].columns[0]
    tables["bank"][numbers] += 1e9
    fit(tables, make_labels(make_tables()), dependence=True, n_trees=1)
    table = kept["bank", "partial-dependence"]
    assert table.loc[table["column"] == numbers, "values"].is_unique


def test_a_party_s_page_shows_those_that_matter_most(drawn):
    table = pd.DataFrame(
        {
            "column": ["flat"] * 3 + ["town"] * 3,
            "values": ["to 1", "above 1", "missing", "Gent", "Ulm", "missing"],
            "prediction": [0.1, 0.1, 0.1, -1.0, 1.0, 0.0],
        }
    )
    figure, folded = dependence_section(table).body
    assert figure.index("town") < figure.index("flat")
    assert "Ulm" in folded
