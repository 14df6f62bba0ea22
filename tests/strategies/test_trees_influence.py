"""What moves predictions: Shapley values against runs with fewer parties, paths, importance."""

from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from ledgered import Nodes
from tree_runs import SMALL, fit, make_labels, make_tables, splits_of

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError
from strategies.predict import Predict
from strategies.trees import VerticalGBDT
from strategies.trees.contributions import coalitions, path_contributions, shapley_contributions
from strategies.trees.model import Ensembles, TreesModel
from strategies.trees.predict import TreesPredictParty

PARTIES = ["bank", "court", "shop"]


@pytest.fixture(scope="module")
def data():
    # No row comes to so many splits that its bits end with those of its codes.
    tables = make_tables(n_parties=3, seed=41)
    return tables, make_labels(tables, seed=42, unlabelled=50)


@pytest.fixture(scope="module")
def fitted(data):
    return fit(*data, histograms="open", importance="columns")


@pytest.fixture(scope="module")
def by_subset(data, fitted):
    """Raw predictions by real runs with every set of parties but the empty one."""
    tables, _ = data
    found = {}
    tables = {name: table.set_axis(table.index.map(str)) for name, table in tables.items()}
    rows = tables["court"].index  # all parties hold them
    for size in (1, 2, 3):
        for names in combinations(PARTIES, size):
            some = {name: tables[name].loc[rows] for name in names}
            p = fitted.predict(some).predictions.loc[rows, "probability_1"]
            found[names] = np.log(p / (1 - p)).to_numpy()
    nothing = {"bank": blank(tables["bank"], rows)}
    p = fitted.predict(nothing).predictions.loc[rows, "probability_1"]
    found[()] = np.log(p / (1 - p)).to_numpy()
    return rows, found


def blank(table, rows):
    """Rows without a value, and one with all: a column without any is refused."""
    whole = table.dropna().iloc[:1].set_axis(["whole"])
    nothing = table.loc[rows].mask(np.ones((len(rows), table.shape[1]), dtype=bool))
    return pd.concat([nothing, whole])


@pytest.fixture(scope="module")
def shapley(data, fitted):
    strategy = Predict(fitted, contributions="shapley")
    return simulate(strategy, data[0], data[1])


def test_shapley_values_are_those_of_all_orders(by_subset, shapley):
    rows, values = by_subset
    found = shapley.contributions.loc[rows.map(int)]
    np.testing.assert_allclose(found["base"], values[()], atol=1e-9)
    orders = list(permutations(PARTIES))
    for name in PARTIES:
        expected = np.zeros(len(rows))
        for order in orders:
            before = tuple(sorted(order[: order.index(name)]))
            expected += (values[tuple(sorted((*before, name)))] - values[before]) / len(orders)
        np.testing.assert_allclose(found[name], expected, atol=1e-9)
    assert found[PARTIES].abs().mean().min() > 1e-3


def test_they_add_up_and_absent_parties_have_none(data, shapley, fitted):
    tables, _ = data
    path = fitted.predict(tables)
    for result in (shapley, path):
        p = result.predictions["probability_1"]
        total = result.contributions.sum(axis=1)
        np.testing.assert_allclose(total, np.log(p / (1 - p)), atol=1e-9)
    pd.testing.assert_frame_equal(shapley.predictions, path.predictions)
    lacks = shapley.contributions.index.difference(tables["court"].index)
    assert len(lacks) > 100
    np.testing.assert_allclose(shapley.contributions.loc[lacks, "court"], 0.0, atol=1e-12)


def test_the_fit_s_own_paths(data, fitted):
    again = fitted.predict(data[0]).contributions
    own = fitted.contributions
    assert list(own.index) == list(range(50))
    pd.testing.assert_frame_equal(own, again.loc[own.index], check_names=False)


def test_what_shapley_values_tell_is_counted(data, fitted, shapley, monkeypatch):
    """Each side once, before its owner tells it; the note says how many there are."""
    bits = {"path": 0, "shapley": 0}
    for form in bits:

        def count(self, chosen, each, form=form, **_):
            bits[form] += int(np.sum(chosen) * each)

        monkeypatch.setattr(TreesPredictParty, "open_bits", count)
        simulate(Predict(fitted, contributions=form), data[0])
    note = next(n for n in shapley.notes if n.startswith("contributions"))
    told, own_way = (int(word.replace(",", "")) for word in (note.split()[1], note.split()[7]))
    assert bits == {"path": own_way, "shapley": told}
    steps = shapley.ledger.to_frame().groupby("step")["round"].nunique()
    assert steps["sides"] == SMALL["max_depth"]  # all ways together
    assert 1.0 < told / own_way < 4.0


def test_classes_have_a_line_each(data):
    labels = make_labels(data[0], "multiclass", unlabelled=40)
    result = fit(data[0], labels, objective="multiclass", n_trees=1, histograms="open")
    found = result.contributions
    assert found.index.names == ["sample", "class"]
    assert len(found) == 3 * 40
    raw = found.sum(axis=1).unstack("class").loc[result.predictions.index].to_numpy()
    p = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(result.predictions.filter(like="prob"), p, atol=1e-12)
    strategy = Predict(result, contributions="shapley")
    again = simulate(strategy, data[0])
    pd.testing.assert_frame_equal(
        again.predictions.loc[result.predictions.index], result.predictions, check_names=False
    )


def test_expectations_by_hand():
    """One tree: bank's split, and below it on the left court's."""
    model = TreesModel(
        "m", ["bank", "court"], "regression", 0.0, np.array([10.0]),
        tree=np.zeros(5, np.int32), number=np.arange(5, dtype=np.int32),
        party=np.array([0, 1, -1, -1, -1]), left=np.array([1, 3, -1, -1, -1]),
        right=np.array([2, 4, -1, -1, -1]), missing_left=np.zeros(5, np.uint8),
        value=np.array([0.0, 0, 8, 1, 3]), gain=np.zeros(5), cover=np.array([8.0, 4, 4, 1, 3]),
        roots=np.array([0]), ensembles=np.ones((1, 2), np.uint8),
    )  # fmt: skip
    found = path_contributions(model, np.array([[2, 3, 4]]))[0]
    # Court's node expects (1 + 3 * 3) / 4 = 2.5, the root (4 * 2.5 + 4 * 8) / 8 = 5.25.
    np.testing.assert_allclose(found, [[15.25, 2.75, 0], [15.25, -2.75, -1.5], [15.25, -2.75, 0.5]])


def test_shapley_values_by_hand():
    """The glove game: bank and shop have a left glove, court a right one; a pair is worth 1."""
    values = [float(1 in chosen and len(chosen) > 1) for chosen in coalitions(3)]
    found = shapley_contributions(np.array(values)[:, None, None], 3)
    np.testing.assert_allclose(found[0, 0], [0, 1 / 6, 4 / 6, 1 / 6])


def test_too_many_parties(fitted, monkeypatch):
    model = fitted.predictor
    many = type(model)(**{**vars(model), "parties": [*model.parties, *"defg"]})
    monkeypatch.setattr(fitted, "predictor", many)
    with pytest.raises(ConfigError, match=r"6 parties at most, and the fit had 7; use 'path'"):
        simulate(Predict(fitted, contributions="shapley"), make_tables())


def test_importance_by_column_adds_up(data, fitted):
    by_column, by_party = fitted.importance, fitted.model
    assert by_column.index.names == ["party", "column"]
    total = by_column.groupby("party").sum().loc[PARTIES]
    pd.testing.assert_frame_equal(total, by_party, check_dtype=False)
    names = [f"{k}{j}" for k in "bcs" for j in (0, 1, 2, 9)]
    splits = set().union(*(splits_of(fitted, t) for t in range(SMALL["n_trees"])))
    used = {names[column] for _, column, *_ in splits}
    assert set(by_column.index.get_level_values("column")) == used
    without = fit(*data, histograms="open", n_trees=1)
    assert list(without.importance.index) == PARTIES


def test_names_need_every_node_s_consent(data, tmp_path):
    nodes = Nodes(tmp_path, data[0])
    strategy = VerticalGBDT(
        n_trees=1, max_depth=1, histograms="open", importance="columns", min_child=8
    )
    assert strategy.exchanges_asked == ("histograms", "column-names")
    nodes.state(exchanges="histograms")
    assert "column-names" in nodes.refused("exchanges", strategy, data[1])
    nodes.state(exchanges="histograms,column-names")
    assert len(nodes.run(strategy, data[1]).importance) == 1


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
    found = runs["patterns"].predict(new)
    expected = runs["without"].predict(new)
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
