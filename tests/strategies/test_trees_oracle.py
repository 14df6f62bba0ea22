"""Vertical boosting grows the trees of a plain central booster, to the split."""

import numpy as np
import pandas as pd
import pytest
from oracles import trees as oracle
from tree_runs import SMALL, N, fit, make_labels, make_tables, pooled, splits_of


def central(tables, labels, objective="binary", *, sorted_levels=True, **settings):
    codes, bins, nominal = pooled(tables)
    known = np.flatnonzero(labels.notna())
    return oracle.boost(
        codes, bins, labels.to_numpy(), objective, SMALL["n_trees"], SMALL["max_depth"],
        min_child=SMALL["min_child"], nominal=nominal, fit=known,
        sorted_levels=sorted_levels, **settings,
    )  # fmt: skip


def assert_same_trees(result, expected):
    width = len(expected.base)
    assert result.metrics["iterations"] == len(expected.trees)
    n_splits = 0
    for t in range(len(expected.trees)):
        for c in range(width):
            # Splits closer than rounding and noise would be a matter of luck, not of the method.
            gaps = [n.gap for n in expected.trees[t][c] if n.split is not None]
            assert min(gaps) > 1e-4
            wanted = expected.splits(t, c)
            assert splits_of(result, t * width + c) == wanted
            n_splits += len(wanted)
    return n_splits


@pytest.mark.parametrize("histograms", ["hidden", pytest.param("open", marks=pytest.mark.slow)])
def test_trees_are_the_central_ones(histograms):
    tables = make_tables()
    labels = make_labels(tables, unlabelled=40)
    result = fit(tables, labels, histograms=histograms)
    expected = central(tables, labels)
    assert assert_same_trees(result, expected) > 20
    free = expected.raw[0][:40]
    found = result.predictions
    np.testing.assert_allclose(found["probability_1"], 1 / (1 + np.exp(-free)), rtol=1e-12)
    np.testing.assert_array_equal(found["prediction"], (free > 0).astype(float))
    assert list(found.index) == list(range(40))


@pytest.mark.parametrize(
    ("objective", "l2"), [("regression", 1.0), ("poisson", 0.5), ("multiclass", 0.0)]
)
def test_other_losses_and_l2(objective, l2):
    tables = make_tables(seed=3)
    labels = make_labels(tables, objective, seed=4)
    result = fit(tables, labels, objective=objective, l2=l2)
    expected = central(tables, labels, objective, l2=l2, sorted_levels=objective != "multiclass")
    assert_same_trees(result, expected)
    raw = result.predictor.raw(result_leaves(result, expected, pooled(tables)[1]))
    np.testing.assert_allclose(raw, expected.raw, atol=1e-12)


@pytest.mark.parametrize("histograms", ["hidden", pytest.param("open", marks=pytest.mark.slow)])
def test_levels_may_be_sorted(histograms):
    """Labels that a threshold in an order of many levels tells, and no single level."""
    tables = make_tables(seed=7)
    rng = np.random.default_rng(8)
    tables["bank"]["b8"] = town = rng.choice(list("abcdefghij"), N)
    effect = dict(zip("abcdefghij", rng.permutation(np.linspace(-1, 1, 10)), strict=True))
    chance = 1 / (1 + np.exp(-np.vectorize(effect.get)(town)))
    labels = pd.Series((rng.random(N) < chance).astype(float))
    result, single = (
        fit(tables, labels, histograms=histograms, levels=levels) for levels in ("sorted", "single")
    )
    expected = central(tables, labels)
    assert_same_trees(result, expected)
    assert_same_trees(single, central(tables, labels, sorted_levels=False))
    column, (_, bins, nominal) = 4, pooled(tables)
    assert column in nominal
    splits = set().union(*(splits_of(result, t) for t in range(SMALL["n_trees"])))
    assert any(j == column and at >= bins[column] for _, j, at, _ in splits)
    assert result.metrics["train_loss"] < single.metrics["train_loss"]
    again = result.predict(tables, labels)
    assert again.metrics["loss"] == pytest.approx(result.metrics["train_loss"], rel=1e-12)


def test_three_parties_have_two_helpers():
    tables = make_tables(n_parties=3, seed=5)
    labels = make_labels(tables, seed=6)
    assert_same_trees(fit(tables, labels), central(tables, labels))


def test_predictions_of_new_rows_and_of_parties_that_left():
    tables = make_tables()
    labels = make_labels(tables)
    result = fit(tables, labels)
    expected = central(tables, labels)
    p = 1 / (1 + np.exp(-expected.raw[0]))
    again = result.predict(tables, labels)
    np.testing.assert_allclose(again.predictions["probability_1"], p, rtol=1e-12)
    assert again.metrics["loss"] == pytest.approx(result.metrics["train_loss"], rel=1e-12)
    # A greeting, alignment, the name of the model, and a round for each level.
    assert again.ledger.rounds == 3 + SMALL["max_depth"]

    alone = result.predict({"bank": tables["bank"]})
    one = result.predict({**tables, "court": tables["court"].iloc[-40:]})
    np.testing.assert_array_equal(alone.predictions[:-40], one.predictions[:-40])
    np.testing.assert_array_equal(again.predictions[-40:], one.predictions[-40:])

    found, lacks = (
        result.predict({"bank": tables["bank"].replace({"b9": {"v": level}})})
        for level in ("elsewhere", None)
    )
    (said,) = set(found.notes) - set(lacks.notes)
    assert said.startswith(f"party 'bank': {(tables['bank']['b9'] == 'v').sum()} rows have a level")
    np.testing.assert_array_equal(found.predictions, lacks.predictions)
    assert "court" in alone.notes[0]


def result_leaves(result, expected, bins):
    """Leaf of each sample in each tree, from the parties' parts."""
    model = result.predictor
    codes, nominal = expected.codes, expected.nominal
    out = np.zeros((len(model.roots), N), dtype=np.int64)
    for t, root in enumerate(model.roots):
        splits = {path: rest for path, *rest in splits_of(result, t)}
        todo = [(int(root), "", np.arange(N))]
        while todo:
            line, path, rows = todo.pop()
            if path not in splits:
                out[t, rows] = line
                continue
            left = oracle.goes_left(codes[rows], splits[path], bins, nominal)
            todo += [(int(model.left[line]), path + "L", rows[left])]
            todo += [(int(model.right[line]), path + "R", rows[~left])]
    return out
