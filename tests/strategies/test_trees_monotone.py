"""Predictions rise, or fall, with a column where its node says so; the trees are the oracle's."""

import numpy as np
import pandas as pd
import pytest
from oracles import trees as oracle
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from tree_runs import SMALL, fit, make_labels, make_tables, pooled, splits_of

from flwr_vertical import Table, simulate, step
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS
from strategies.forest import VerticalForest
from strategies.trees import VerticalGBDT
from strategies.trees.binning import SlotLayout, fit_bins
from strategies.trees.monotone import TOLD, allowed_signs, directions_of, of_slots, right_way
from strategies.trees.party import TreeParty

DIRECTIONS = {("bank", "b0"): 1, ("bank", "b1"): -1, ("court", "c1"): 1}
CONFIG = {
    party: {f"trees.monotone.{c}": d for (p, c), d in DIRECTIONS.items() if p == party}
    for party in ("bank", "court")
}
ORDER = [f"{k}{j}" for k in "bc" for j in (0, 1, 2, 9)]  # of columns over all parties


@pytest.fixture(scope="module")
def data():
    tables = make_tables(seed=21)
    return tables, make_labels(tables, seed=22)


@pytest.fixture(scope="module")
def hidden(data):
    transcript = []
    result = simulate(VerticalGBDT(**SMALL), *data, node_config=CONFIG, transcript=transcript)
    return result, transcript


@pytest.fixture(scope="module")
def opened(data):
    strategy = VerticalGBDT(**SMALL, histograms="open")
    return simulate(strategy, *data, node_config=CONFIG)


def steepest_fall(result, tables, party, column, direction):
    """Return the least change of predictions where one column rises and all else stays."""
    values = np.linspace(-3, 3, 25)
    rows = tables["court"].index[:80]
    new = {}
    for name, table in tables.items():
        copies = []
        for value in values:
            own = table.loc[rows].set_axis([f"{i} {value}" for i in rows])
            copies.append(own.assign(**{column: value}) if name == party else own)
        new[name] = pd.concat(copies)
    found = result.predict(new).predictions
    p = found.loc[new["bank"].index, "probability_1"].to_numpy().reshape(len(values), -1)
    return float((direction * np.diff(p, axis=0)).min())


def test_predictions_are_monotone(data, opened):
    without = fit(*data, histograms="open")
    for (party, column), direction in DIRECTIONS.items():
        assert steepest_fall(opened, data[0], party, column, direction) >= 0.0
        assert steepest_fall(without, data[0], party, column, direction) < -0.01


@pytest.mark.parametrize("histograms", ["hidden", "open"])
def test_trees_are_the_oracle_s(data, hidden, opened, histograms):
    result = hidden[0] if histograms == "hidden" else opened
    codes, bins, nominal = pooled(data[0])
    monotone = {ORDER.index(column): d for (_, column), d in DIRECTIONS.items()}
    settings = {"min_child": SMALL["min_child"], "nominal": nominal, "monotone": monotone}
    settings["sorted_levels"] = True
    expected = oracle.boost(
        codes, bins, data[1].to_numpy(), "binary", SMALL["n_trees"], SMALL["max_depth"], **settings
    )
    for t in range(SMALL["n_trees"]):
        gaps = [n.gap for n in expected.trees[t][0] if n.split is not None]
        assert min(gaps) > 1e-4  # else the split would be a matter of rounding
        assert splits_of(result, t) == expected.splits(t)
    found = result.predict(data[0]).predictions["probability_1"]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-expected.raw[0])), atol=1e-12)
    values = result.predictor.gain[result.predictor.party >= 0]
    assert (values > 0).all()


def test_as_good_as_scikit_learn(data):
    """Its boosters judge splits by values within the range, so trees need not be the same."""
    tables, labels = data
    result = simulate(
        VerticalGBDT(n_trees=30, max_depth=4, min_child=20, n_bins=12, histograms="open"),
        tables, labels, node_config=CONFIG,
    )  # fmt: skip
    codes, bins, nominal = pooled(tables)
    x = np.where(codes == bins, np.nan, codes)[:, [j for j in range(8) if j not in nominal]]
    kept = [c for j, c in enumerate(ORDER) if j not in nominal]
    by_name = {column: d for (_, column), d in DIRECTIONS.items()}
    model = HistGradientBoostingClassifier(
        max_iter=30, max_depth=4, max_leaf_nodes=None, early_stopping=False,
        monotonic_cst=[by_name.get(c, 0) for c in kept],
    ).fit(x, labels)  # fmt: skip
    theirs = log_loss(labels, model.predict_proba(x))
    assert result.metrics["train_loss"] < theirs + 0.02  # ours has the nominal columns as well


def test_what_the_arbiter_is_told_is_random_alone(hidden):
    """Of a column with a direction, the sign that may win is as often either."""
    masks = []
    for record in hidden[1]:
        if record.direction == "down":
            told = decode(record.content, ARGUMENTS)
            if "signs" in told:
                shape = np.asarray(told["shares"]).shape
                bits = np.unpackbits(told["signs"], count=2 * shape[1] * shape[2])
                masks.append(bits.reshape(2, -1).astype(bool))
    assert len(masks) == SMALL["n_trees"] * SMALL["max_depth"]
    above, below = np.concatenate(masks, axis=1)
    assert (above | below).all()
    one = above ^ below
    assert one.sum() > 1000
    assert abs((above & one).sum() / one.sum() - 0.5) < 5 * 0.5 / np.sqrt(one.sum())


def test_signs_by_hand():
    of_columns = np.array([1, 0, -1], dtype=np.int8)
    directions = of_slots(of_columns, SlotLayout((2, 2, 3), (0, 0, 0), (1, 0, 0)))
    np.testing.assert_array_equal(directions, [1, 0, 0, -1, -1, 0])  # the first lacks no cell
    directions = np.repeat(directions, 2)
    way = right_way(np.array([[2, -2] * 6]), directions)[0].reshape(6, 2)
    np.testing.assert_array_equal(way[:, 0], directions[::2] >= 0)
    np.testing.assert_array_equal(way[:, 1], directions[::2] <= 0)
    rng = np.random.default_rng(0)
    factors = rng.choice([-5, 5], size=(3, 12))
    truth = rng.choice([-3, 3], size=(3, 12))
    above, below = allowed_signs(factors, directions)
    blinded = factors * truth
    np.testing.assert_array_equal(
        np.where(blinded >= 0, above, below), right_way(truth, directions)
    )


class DeafParty(TreeParty):
    """Answers as one of an older version, which knows no directions."""

    @step(repeatable=False)
    def prepare(self, **arguments):
        told = super().prepare(**arguments)
        self.state.pop(TOLD)
        return told | {"monotone": np.zeros_like(told["monotone"])}


class DeafGBDT(VerticalGBDT):
    name = "deaf-gbdt"
    party = DeafParty


def test_a_direction_that_is_not_followed_is_no_silent_one(data):
    strategy = DeafGBDT(n_trees=1, max_depth=2, histograms="open")
    with pytest.raises(PartyError, match=r"states trees\.monotone\.b0, which this way"):
        simulate(strategy, *data, node_config={"bank": CONFIG["bank"]})
    simulate(strategy, *data)


def test_keys_that_cannot_be_followed(data):
    tables, labels = data
    bins = fit_bins(Table.of(tables["bank"]), 8)
    for key, value, message in (
        ("b0", 2, "expected 1 or -1"),
        ("b00", 1, "no column 'b00'.*'b0'"),
        ("b9", 1, "have no order; state kind.b9 = 'ordinal'"),
    ):
        with pytest.raises((ConfigError, ValueError), match=message):
            directions_of({f"trees.monotone.{key}": value}, bins, "bank")
    assert not directions_of({"trees.monotone.b9": 0, "party": "bank"}, bins, "bank").any()
    classes = make_labels(tables, "multiclass")
    gbdt, forest = VerticalGBDT(**SMALL), VerticalForest(n_trees=1)
    several = VerticalGBDT(**SMALL, objective="multiclass")
    for strategy, y, config, error, message in (
        (gbdt, labels, {"bank": {"trees.monotone.b00": 1}}, PartyError, "no column 'b00'"),
        (gbdt, labels, {"banc": {}}, ConfigError, "names unknown parties"),
        (gbdt, labels, {"bank": {"policy.openings": 3}}, ConfigError,
         r"'policy.openings', which is not read by a strategy"),
        (several, classes, CONFIG, ConfigError, "probabilities of several classes"),
        (forest, labels, CONFIG, ConfigError, r"does not follow; .*boost trees \('gbdt'\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            simulate(strategy, tables, y, node_config=config)
