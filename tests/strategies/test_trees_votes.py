"""Forests: the trees, the votes, who sees what."""

import logging

import numpy as np
import pandas as pd
import pytest
from forest_runs import assert_same_splits, central, parts_of, splits_of
from resuming import ServerKilled
from tree_runs import make_labels, make_tables

from flwr_vertical import LocalGrid, simulate
from flwr_vertical.errors import ConfigError, PartyError, PolicyError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES
from simulations.attacks.recording import Recording, watching
from simulations.attacks.suite import ATTACKS, RULED, attack_run
from strategies.forest import VerticalForest
from strategies.trees import VerticalGBDT

SETTINGS = {"n_trees": 4, "batch": 2, "max_depth": 4, "n_bins": 12, "min_child": 5}
AGREED = {"modules": "strategies.forest.strategy:VerticalForest", "alignments": "plain"}
FINE = {n: {**AGREED, "grid": 30, "predictions": 60} for n in ("bank", "court", "shop")}


def forest(tables, labels, policy=None, transcript=None, **settings):
    if policy is not None:
        policy = {**{n: policy[n] for n in tables}, "arbiter": AGREED}
    strategy = VerticalForest(**{**SETTINGS, "colsample": 1.0, **settings})
    how = {"policy": policy, "transcript": transcript, "progress": False}
    # Draws follow the order of samples, which a private alignment hides.
    return simulate(strategy, tables, labels, alignment="plain", **how)


def told(transcript, name):
    """Values of that name in all messages, in order."""
    for record in transcript:
        values = decode(record.content, VALUES if record.direction == "up" else ARGUMENTS)
        if name in values:
            yield values[name]


@pytest.fixture(scope="module")
def data():
    tables = make_tables(seed=13)
    labels = make_labels(tables, seed=14)
    labels.iloc[::3] = np.nan
    return tables, labels


@pytest.fixture(scope="module")
def run(data):
    """Of two classes, with columns drawn, and its messages."""
    transcript = []
    return forest(*data, transcript=transcript, colsample=0.5), transcript


@pytest.mark.parametrize("objective", ["classes", "regression"])
def test_trees_and_votes_are_the_central_ones(objective):
    """Three parties, bootstrap draws, missing cells, blocks and labels."""
    tables, transcript = make_tables(seed=13, n_parties=3), []
    labels = make_labels(tables, "binary" if objective == "classes" else "regression", seed=14)
    labels.iloc[::3] = np.nan
    result = forest(tables, labels, FINE, transcript, objective=objective)
    targets = labels.to_numpy()
    trees, votes = central(tables, targets, next(told(transcript, "seed")), 4, 4)
    for t, nodes in enumerate(trees):
        assert assert_same_splits(splits_of(result, t), nodes, targets) > 5
    name = "probability_1" if objective == "classes" else "prediction"
    found = result.predictions[name]
    # A grid of 30 bits; targets of a regression are whole numbers of 2^-18 of their range.
    tolerance = 2.0**-29 if objective == "classes" else 2e-5
    votes = pd.Series(votes[::3], labels.index[::3])
    np.testing.assert_allclose(found, votes[found.index], atol=tolerance)
    assert not parts_of(result)["shop"].leaf.any()  # two parties hold the halves
    # New rows, of which the third party has none; votes on the grid that nodes agree to.
    some = {n: table for n, table in tables.items() if n != "shop"}
    parts = result.predict(some, labels, progress=False)
    assert parts.notes == ["parties ['shop'] of the fit take no part; their blocks are missing"]
    again = result.predict(tables, labels, progress=False)
    step = 2.0**-12 * (np.nanmax(targets) - np.nanmin(targets))
    np.testing.assert_allclose(again.predictions[name][found.index], found, atol=0.51 * step)
    measure = "accuracy" if objective == "classes" else "rmse"
    assert parts.metrics[measure] != again.metrics[measure]


def test_classes_have_trees_and_bits_of_their_own(data):
    tables = data[0]
    labels, transcript = make_labels(tables, "multiclass", seed=16), []
    labels.iloc[:50] = np.nan
    result = forest(tables, labels, transcript=transcript, n_trees=2)
    targets = np.where(labels.isna(), np.nan, labels == 1)
    trees, _ = central(tables, targets, next(told(transcript, "seed")), 2, 4)
    for draw in range(2):  # the second class has the trees 1 and 4
        assert_same_splits(splits_of(result, 3 * draw + 1), trees[draw], targets)
    shares = result.predictions.filter(like="probability_")
    assert shares.shape == (50, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert {int(bits) for bits in told(transcript, "bits")} == {12 // 3}


def test_rounds_and_what_is_told_of_the_forest(run):
    result, transcript = run
    # Greeting and alignment; keys, seed, masked slots, shares; batches; votes and the end.
    assert result.ledger.rounds == 2 + 4 + 2 * (1 + 3 * 4 + 1) + 2 + 2
    assert list(result.model.columns) == ["splits", "cover"]
    table = parts_of(result)["bank"].table
    assert result.model["splits"].sum() == (table[:, 2] >= 0).sum()
    names = {
        name
        for record in transcript
        for name in decode(record.content, VALUES if record.direction == "up" else ARGUMENTS)
    }
    assert not names & {"node", "split", "left", "legal", "place", "count"}


def test_what_passes_the_server_tells_nothing_of_rows(run, data):
    """Sealed, or uniform, and of a size that follows from the number of rows, trees and nodes."""
    _, transcript = run
    for name in ("masked", "masked_target", "dealt"):
        words = np.concatenate([np.ravel(values) for values in told(transcript, name)])
        cells = np.bincount((words >> np.uint64(60)).astype(int), minlength=16)
        assert ((cells - cells.mean()) ** 2 / cells.mean()).sum() < 15 + 6 * np.sqrt(30)
    sides = [value for value in told(transcript, "sides") if isinstance(value, bytes)]
    assert len(sides) == 2 * 2 * 4
    # Other labels: another forest. The server cannot tell by what the parties send.
    other = []
    shuffled = data[1].sample(frac=1.0, random_state=0).set_axis(data[1].index)
    labels = shuffled.fillna(0.0).where(data[1].notna())
    forest(data[0], labels, transcript=other, colsample=0.5)
    lengths = [[len(value) for value in told(t, "sides") if isinstance(value, bytes)]
               for t in (transcript, other)]  # fmt: skip
    assert lengths[0][:2] == lengths[1][:2]  # of the root
    for length, ones in zip(lengths[0], sides, strict=True):
        assert abs(length - (2 * 400) // 8 - 28) <= 2  # a bit a row and tree, one a node; the seal
        assert abs(np.unpackbits(np.frombuffer(ones, np.uint8)).mean() - 0.5) < 0.1


def test_attacks_find_columns_where_the_server_knows_the_routing_only():
    rng = np.random.default_rng(3)
    tables = {
        name: pd.DataFrame(rng.normal(size=(60, 2)), columns=[f"{name[0]}{j}" for j in range(2)])
        for name in ("bank", "court")
    }
    for name, table in tables.items():
        table[f"{name[0]}1"] = rng.integers(0, 2, 60)
    signal = tables["bank"]["b0"] + tables["court"]["c1"] * 2.0 - tables["bank"]["b1"]
    labels = (signal > 0.5).astype(float)
    labels.iloc[::4] = np.nan
    attacks = [name for name in ATTACKS if name not in RULED]
    found = {}
    grown = {"n_trees": 8, "max_depth": 3, "n_bins": 8}
    for knows, strategy in {
        "parties": VerticalForest(**grown, batch=4),
        "server": VerticalGBDT(**grown, min_child=5),
    }.items():
        worked, transcript = [], []
        with watching(worked, transcript):
            result = simulate(strategy, tables, labels, progress=False, transcript=transcript)
        recorded = Recording(strategy, "masked", tables, labels, result, transcript, worked)
        findings = [f for f in attack_run(recorded, attacks) if f.view == "server"]
        found[knows] = max(finding.beyond for finding in findings)
    assert found["parties"] <= 0.0 < found["server"]


@pytest.mark.parametrize("at", [6, 9, 24])
def test_killed_at_any_round_and_resumed_it_gives_the_same(at, run, data, monkeypatch, tmp_path):
    logging.disable(logging.CRITICAL)
    original, rounds = LocalGrid.send_and_receive, [0]

    def send_and_receive(grid, messages, *, timeout=None):
        rounds[0] += 1
        if rounds[0] == at:
            raise ServerKilled
        return original(grid, messages, timeout=timeout)

    monkeypatch.setattr(LocalGrid, "send_and_receive", send_and_receive)
    how = {"progress": False, "checkpoint": tmp_path / "run", "checkpoint_every": 1}
    how["alignment"] = "plain"
    strategy = VerticalForest(**SETTINGS, colsample=0.5)
    try:
        with pytest.raises(ServerKilled):
            simulate(strategy, *data, **how)
        result = simulate(strategy, *data, resume=True, **how)
    finally:
        logging.disable(logging.NOTSET)
    pd.testing.assert_frame_equal(result.predictions, run[0].predictions, check_exact=True)
    for name, part in parts_of(result).items():
        before = parts_of(run[0])[name]
        np.testing.assert_array_equal(part.table, before.table)
        np.testing.assert_array_equal(part.splits, before.splits)


def test_a_batch_may_have_one_column():
    """Two of three parties have nothing to offer, and their parcels look like the third's."""
    tables = make_tables(seed=13, n_parties=3)
    transcript = []
    settings = {"n_trees": 2, "batch": 1, "max_depth": 2, "colsample": 0.01}
    result = forest(tables, make_labels(tables, seed=14), transcript=transcript, **settings)
    assert result.predictions is None
    table = parts_of(result)["bank"].table
    for tree in (0, 1):
        assert len(set(table[(table[:, 0] == tree) & (table[:, 2] >= 0), 2])) == 1
    parcels = [value for value in told(transcript, "parcel") if isinstance(value, bytes)]
    assert {len(parcels[i]) for i in range(3)} == {len(parcels[0])}


def test_many_classes_need_more_bits_of_a_row(data):
    labels = pd.Series(np.arange(400) % 7, dtype=float)
    with pytest.raises(ConfigError, match="14 of a row, and the nodes allow 12"):
        forest(data[0], labels)


def test_predicting_needs_both_halves_of_leaves(run, data):
    with pytest.raises(ConfigError, match="party 'court' takes no part"):
        run[0].predict({"bank": data[0]["bank"]}, progress=False)


def test_a_node_bounds_its_splits_and_what_votes_tell(data):
    tables, labels = data
    policy = {"bank": {**AGREED, "min-rows": 60}, "court": AGREED}
    result = forest(tables, labels, policy, n_trees=2, bootstrap=False)
    table = parts_of(result)["bank"].table
    for k, least in ((0, 60), (1, SETTINGS["min_child"])):
        below = table[table[:, 2] == k][:, 3:5]
        assert table[below.ravel(), 6].min() >= least
    policy = {"bank": {**AGREED, "predictions": 5}, "court": AGREED}
    with pytest.raises((PolicyError, PartyError), match="predictions"):
        forest(tables, labels, policy, n_trees=1, max_depth=1)


def test_settings_of_before_say_what_to_use():
    with pytest.raises(TypeError, match=r"it was removed: histograms='open'"):
        VerticalGBDT(products="encrypted")
    with pytest.raises(TypeError, match=r"it was removed: nothing in its place.*'gbdt'"):
        VerticalForest(routing="server")
