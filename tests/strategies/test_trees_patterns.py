"""Patterns of missing blocks with trees of their own: each ensemble is a run on its parties."""

import numpy as np
import pytest
from tree_runs import fit, make_labels, make_tables

from strategies.trees.model import Ensembles

N = 300


def blocks():
    """Three parties; the second lacks a third of the rows, the last 60 rows have no label."""
    tables = make_tables(N, n_parties=3)
    labels = make_labels(tables, n=N)
    labels.iloc[::5] = np.nan
    return tables, labels


@pytest.fixture(scope="module")
def runs():
    tables, labels = blocks()
    without = {name: tables[name] for name in ("bank", "shop")}
    return {
        "patterns": fit(tables, labels, patterns=3),
        "shared": fit(tables, labels),
        "without": fit(without, labels),
    }


def probabilities(result):
    return result.predictions["probability_1"]


def test_each_ensemble_is_that_of_a_run_on_its_parties_columns(runs):
    found = probabilities(runs["patterns"])
    lacks = found.index < N // 3
    assert 0 < lacks.sum() < len(found)
    np.testing.assert_allclose(found[lacks], probabilities(runs["without"])[lacks], rtol=1e-12)
    np.testing.assert_allclose(found[~lacks], probabilities(runs["shared"])[~lacks], rtol=1e-12)
    assert not np.allclose(found[lacks], probabilities(runs["shared"])[lacks])


def test_ensembles_share_rounds(runs):
    def rounds(result):
        return result.ledger.to_frame().groupby("step")["round"].nunique()

    # One round each, while any tree has a level to grow.
    together, alone = rounds(runs["patterns"]), rounds(runs["shared"])
    assert together["share"] == alone["share"]
    assert together["compare"] == alone["compare"]


def test_no_party_is_asked_for_sides_of_trees_that_do_not_concern_the_sample(runs):
    model = runs["patterns"].predictor
    held = np.array([[True, True, True], [True, False, True], [True, False, False]])
    starts = model.starts(held)
    assert model.ensembles.tolist() == [[1, 1, 1], [1, 0, 1]]
    # Trees alternate; a pattern without trees of its own is predicted by those of all parties.
    np.testing.assert_array_equal(starts[::2] >= 0, [[True, False, True]] * 3)
    np.testing.assert_array_equal(starts[1::2] >= 0, [[False, True, False]] * 3)
    own = model.tree[model.party == 1]
    assert len(own)
    assert (own % 2 == 0).all()


def test_new_rows_take_the_trees_of_the_parties_that_are_there(runs):
    tables, labels = blocks()
    rows = labels.index[labels.isna()]
    new = {name: tables[name].reindex(rows) for name in ("bank", "shop")}
    found = runs["patterns"].predict(new, progress=False)
    expected = runs["without"].predict(new, progress=False)
    np.testing.assert_allclose(probabilities(found), probabilities(expected), rtol=1e-12)


def test_classes_and_early_stopping_by_pattern():
    tables, labels = blocks()
    labels = make_labels(tables, "multiclass", n=N)
    result = fit(
        tables, labels, patterns=1, objective="multiclass", validation_share=0.3,
        early_stopping=1, n_trees=4, max_depth=3,
    )  # fmt: skip
    kept = int(result.metrics["iterations"])
    assert len(result.predictor.roots) == kept * 3 * 2
    best = result.history[kept - 1]
    # The loss of the trees that are kept is that which was noted when they were grown.
    assert result.metrics["train_loss"] == pytest.approx(best["train_loss"], rel=1e-12)
    assert result.metrics["validation_loss"] == pytest.approx(best["validation_loss"], rel=1e-12)


def test_frequent_patterns_come_first_and_small_ones_share():
    held = np.repeat([[True, True], [False, True], [True, False]], [5, 20, 9], axis=0)
    fit_rows = np.arange(len(held))
    assert Ensembles.frequent(held, fit_rows, 2, 4).parties.tolist() == [
        [True, True],
        [False, True],
        [True, False],
    ]
    assert len(Ensembles.frequent(held, fit_rows, 1, 4)) == 2
    # The first party holds 14 samples, the second 25.
    few = Ensembles.frequent(held, fit_rows, 2, 20)
    assert few.parties.tolist() == [[True, True], [False, True]]
    assert few.predicting(held).tolist() == [0] * 5 + [1] * 20 + [0] * 9
    np.testing.assert_array_equal(few.fitted(held).sum(axis=1), [34, 25])
