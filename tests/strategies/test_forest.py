"""Forests: the trees, the votes, who sees what."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from forest_runs import assert_same_splits, central, parts_of, splits_of
from sklearn.ensemble import RandomForestRegressor
from tree_runs import make_labels, make_tables

from flwr_vertical import simulate
from flwr_vertical.errors import ConfigError, PartyError, PolicyError, ProtocolError, StateLostError
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, VALUES
from strategies.forest import VerticalForest
from strategies.forest.arbiter import JudgeSteps, pack_places, place, unpack_places
from strategies.forest.batch import Batch
from strategies.forest.gain_messages import Sums, Used, factors_of, limits_of, parcel, winners
from strategies.forest.model import VOTE_BITS, coefficients_of
from strategies.forest.share_arithmetic import (
    DealtSteps,
    dealt,
    helper_matrix,
    node_sums,
    owner_matrix,
)
from strategies.trees.arbiter import pack, unpack
from strategies.trees.node_sums import dense_sums

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
    parts = result.predict(some, labels)
    assert parts.notes == ["parties ['shop'] of the fit take no part; their blocks are missing"]
    again = result.predict(tables, labels)
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


def test_as_good_as_scikit_learns_forest():
    """With the default share of columns, of samples that no tree has seen."""
    rng = np.random.default_rng(3)
    x = pd.DataFrame(rng.normal(size=(1500, 8))).add_prefix("x")
    truth = x["x0"] + x["x1"] * x["x2"] + 2.0 * (x["x5"] > 0)
    labels = truth + 0.5 * rng.normal(size=len(x))
    new = np.arange(len(x)) >= 1000
    strategy = VerticalForest("regression", n_trees=40)
    tables = {"bank": x[["x0", "x2", "x4", "x6"]], "court": x[["x1", "x3", "x5", "x7"]]}
    found = simulate(strategy, tables, labels.mask(new), alignment="plain", progress=False)
    found = found.predictions["prediction"]
    pooled = RandomForestRegressor(40, max_depth=8, min_samples_leaf=5, random_state=0)
    pooled = pooled.fit(x[~new], labels[~new]).predict(x[new])
    assert np.square(found - truth).mean() < 1.1 * np.square(pooled - truth[new]).mean()


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


def test_classes_and_parties_that_a_forest_cannot_have(run, data):
    labels = pd.Series(np.arange(400) % 7, dtype=float)
    with pytest.raises(ConfigError, match="14 of a row, and the nodes allow 12"):
        forest(data[0], labels)
    with pytest.raises(ConfigError, match="party 'court' takes no part"):
        run[0].predict({"bank": data[0]["bank"]})


def test_trees_without_a_split_are_noted(data, run):
    tables = {name: pd.DataFrame({"k": 1.0}, index=data[1].index) for name in data[0]}
    found = forest(tables, data[1])
    assert found.predictions["probability_1"].nunique() == 1
    assert any("no tree has a split" in note for note in found.notes)
    assert not any("no tree has a split" in note for note in run[0].notes)


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


KEY = bytes(range(32))


def ring(rng, *shape):
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_sums_over_a_matrix_are_the_same_in_memory_made_anew_and_by_blocks(share, monkeypatch):
    monkeypatch.setattr("strategies.trees.node_sums.BLOCK_BYTES", 8 * 5 * 64)
    rng = np.random.default_rng(1)
    stream = KeyStream(KEY, "R", (500, 5))
    whole, vectors = stream.rows(0, 500), ring(rng, 2, 3, 500)
    node = np.where(rng.random((1, 500)) < share, rng.integers(0, 4, (3, 500)), -1)
    expected = np.zeros((2, 4, 5), dtype=np.uint64)
    for tree, row in zip(*np.nonzero(node >= 0), strict=True):
        expected[:, node[tree, row]] += vectors[:, tree, row, None] * whole[row]
    for matrix in (whole, stream, lambda start, stop: whole[start:stop]):
        np.testing.assert_array_equal(dense_sums(matrix, 5, node, vectors, 4), expected)


def test_shares_of_products_add_up_and_each_is_uniform():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (500, 7)).astype(np.uint64)
    y = rng.integers(0, 2, 500).astype(np.uint64)
    rho, pads = ring(rng, 500), KeyStream(KEY, "P", (500, 7))
    streams = KeyStream(KEY, "R", (500, 7))
    sent = dealt(x + streams.rows(0, 500), x.shape[1], y, pads)
    own = owner_matrix(7, streams, pads, y + rho)
    helped = helper_matrix(sent, [3, 4], [lambda a, b: streams.rows(a, b)[:, :3],
                                          lambda a, b: streams.rows(a, b)[:, 3:]], rho)  # fmt: skip
    expected = np.concatenate([x * y[:, None], y[:, None]], axis=1)
    np.testing.assert_array_equal(own + helped, expected)
    for share in (own, helped, sent):
        assert abs((share >> np.uint64(63)).mean() - 0.5) < 0.03
    # Sums over nodes of two trees, by weight, of the shares and of what they share.
    node = rng.integers(-1, 3, (2, 500))
    weight = rng.integers(0, 4, (2, 500))
    found = [node_sums(m, 8, node, weight, [3, 3]) for m in (own, helped, expected)]
    np.testing.assert_array_equal(found[0] + found[1], found[2])
    inside = node[1] == 2
    np.testing.assert_array_equal(found[2][5, -1], (weight[1] * y.astype(int))[inside].sum())


@pytest.fixture(scope="module")
def level():
    """20 nodes of 1,000 rows, and a column of 20 bins at each of two parties.

    All rows of node 0 are alike; two slots of node 1, one at each party, have the same rows.
    """
    rng = np.random.default_rng(1)
    total = np.full(20, 1000, dtype=np.uint64)
    counts = np.sort(rng.integers(20, 900, (20, 2, 20)), axis=2).reshape(20, 40)
    ones = np.floor(counts * rng.beta(2, 5, (20, 40)))
    positives = ones.max(axis=1) + 30
    counts[1, 27] = counts[1, 3]
    ones[1, [3, 27]] = positives[1]  # the best split, if all of its rows have the label
    ones[0], positives[0] = counts[0], total[0]
    return total, *(values.astype(np.uint64) for values in (counts, ones, positives))


def parcels_of(level, number=5):
    total, counts, ones, positives = level
    rng = np.random.default_rng(2)
    observed = np.repeat([19, 39], 20)
    shares, halves = ring(rng, 20, 40), ring(rng, 2, 20)
    halves_of, none = (np.arange(20), np.arange(20, 40)), np.zeros(0, dtype=int)
    limits = limits_of(total, 0)
    factors = factors_of(KEY, number, limits, 40)
    out = []
    for k in (0, 1):
        at = Used(k, np.arange(40), np.array([0, 20]), halves_of[k], halves_of[1 - k], observed,
                  none, none, none)  # fmt: skip
        # Of own slots the party has one share of the sums, of the other's the other one.
        totals = [halves[k], positives - halves[k]]
        mine = np.column_stack([shares[:, at.mine], totals[0]])
        other = np.column_stack([(ones - shares)[:, at.theirs], positives - halves[1 - k]])
        sums = Sums(counts[:, at.mine], total, mine, other)
        out.append(parcel(sums, at, factors, limits, KEY, number, bytes([k]) * 32))
    return out


def test_the_arbiter_finds_the_best_splits(level):
    total, counts, ones, positives = level
    parcels = parcels_of(level)
    legal = np.ones((20, 80), dtype=bool)
    wins = winners(parcels[0] + parcels[1], legal)
    order = factors_of(KEY, 5, limits_of(total, 0), 40).order
    observed = np.repeat([19, 39], 20)

    def both(sums, whole):
        with_missing = sums.astype(float) + (whole[:, None] - sums[:, observed]).astype(float)
        return np.stack([sums.astype(float), with_missing], axis=2).reshape(20, 80)

    left, own = both(counts, total), both(ones, positives)
    whole, all_ones = total[:, None].astype(float), positives[:, None].astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.nan_to_num((whole * own - left * all_ones) ** 2 / (left * (whole - left)))
    for q in range(1, 20):
        best = np.flatnonzero(gain[q] >= gain[q].max() * (1 - 2.0**-19))
        np.testing.assert_array_equal(np.sort(order[q, wins[q]]), best)
    assert wins[0].all()  # nothing to choose: the parties take the first of all
    assert not winners(parcels[0] + parcels[1], legal & False).any()


def test_the_arbiter_sees_neither_signs_nor_sizes_nor_owners(level):
    total, counts, ones, positives = level
    parcels = parcels_of(level)
    for values in parcels:
        words = (values >> np.uint64(60)).astype(int)
        cells = np.bincount(words, minlength=16)
        assert ((cells - cells.mean()) ** 2 / cells.mean()).sum() < 15 + 6 * np.sqrt(30)
    whole = parcels[0] + parcels[1]
    rows, last = whole[: 4 * 20 * 80].reshape(4, 20, 80), whole[4 * 20 * 80 :]
    for masked in rows[:2]:
        assert abs((masked >> np.uint64(63)).mean() - 0.5) < 0.05
    x = (rows[0] - rows[1] * last[:, None]).view(np.int64).astype(float)
    true = total[:, None].astype(float) * ones - counts.astype(float) * positives[:, None]
    order = factors_of(KEY, 5, limits_of(total, 0), 40).order
    placed = np.take_along_axis(np.repeat(true, 2, axis=1), order, axis=1)
    seen = (np.abs(placed) > 0) & (order % 2 == 0)
    signs = np.mean(np.sign(x)[seen] == np.sign(placed)[seen])
    assert abs(signs - 0.5) < 4 * 0.5 / np.sqrt(seen.sum())
    sizes = np.take_along_axis(np.repeat(counts.astype(float), 2, axis=1), order, axis=1)
    y_left = rows[2].view(np.int64).astype(float)
    left = [np.corrcoef(np.log(y_left[q][seen[q]]), np.log(sizes[q][seen[q]]))[0, 1]
            for q in range(1, 20)]  # fmt: skip
    assert np.mean(left) < 0.6
    assert max(np.gcd.reduce(row.view(np.int64)) for row in rows[2]) < 8
    assert (np.bincount(order[:, :40].ravel() // 40, minlength=2) > 300).all()  # shuffled


def test_votes_are_means_to_some_2_to_the_minus_20():
    table = np.array([[0, 0, 1, 1, 2, 0, 300], [0, 1, -1, -1, -1, 0, 100],
                      [0, 2, -1, -1, -1, 0, 200]], dtype=np.int32)  # fmt: skip
    found = coefficients_of(table, 7, 3) * np.array([0, 100 * 8, 50 * 8], dtype=np.uint64)
    np.testing.assert_allclose(found * 2.0**-VOTE_BITS, [0, 1 / 7, 0.25 / 7], rtol=2.0**-20)


def test_what_is_written_is_read_again():
    wins = np.array([[True, False, True], [False, False, False], [False, True, False]])
    places = unpack_places(pack_places(wins), 3)
    assert [own.tolist() for own in places] == [[0, 2], [], [1]]
    values = np.arange(4 * 9 + 3, dtype=np.uint64)
    marks, read = unpack(pack(wins, values), [3, 3], 0, 4 * 9 + 3)
    np.testing.assert_array_equal(marks, wins)
    np.testing.assert_array_equal(read, values)
    with pytest.raises(ProtocolError, match="same version"):
        unpack(pack(wins, values), [3, 4], 4 * 12 + 3)
    assert len({place("a", 1), place("a", 2), place("b", 1), place("a", 1, True)}) == 4


def test_the_arbiter_opens_a_round_once():
    node = SimpleNamespace(name="arbiter", cache={}, state={"node.trees.judged": 7})
    keys = {"nonce": b"", "names": [], "publics": [], "identities": [], "signatures": []}
    with pytest.raises(ProtocolError, match="opened once"):
        JudgeSteps(node).judge(7, [0, 0], [], **keys)
    with pytest.raises(ProtocolError, match="opened once"):
        JudgeSteps(node).round_votes(6, 44, [], **keys)


def test_a_party_whose_process_lost_its_shares_says_so():
    shares = {"deal": b"new", "own": np.eye(3, dtype=np.uint64), "helped": np.eye(3)[:, :2]}
    dealt = DealtSteps(SimpleNamespace(name="bank", cache={"votes.shares": shares}, state={}))
    assert dealt.holds(b"new")
    assert dealt.half(1).tolist() == [[0], [0], [1]]
    assert dealt.half(2) is None
    assert not dealt.holds(b"newer")
    with pytest.raises(StateLostError, match="goes back to its last snapshot"):
        dealt.half(0)


def test_nodes_of_trees_that_grow_together():
    """Two trees of 6 rows: the second one has three of them, one twice."""
    weight = np.array([[1, 1, 1, 1, 1, 0], [2, 0, 1, 0, 1, 0]])
    batch = Batch.start(weight, [0, 3], 1)  # of three classes
    left = np.array([[1, 1, 0, 0, 0, 1], [1, 1, 1, 0, 0, 0]], dtype=bool)
    batch.divide(np.array([0, 1]), np.array([1, 0]), left)
    np.testing.assert_array_equal(batch.table[2:, 6], [2, 3, 3, 1])
    np.testing.assert_array_equal(batch.node, [[2, 2, 3, 3, 3, 2], [4, 4, 4, 5, 5, 5]])
    np.testing.assert_array_equal(batch.direct, [0, -1, -1, 1])  # the smaller by weight
    np.testing.assert_array_equal(batch.active, [0, 1, 2])  # one row cannot be split
    at, counts = batch.places(batch.level[batch.active])
    assert counts == [2, 1]
    np.testing.assert_array_equal(at[1], [0, -1, 0, -1, -1, -1])
    copy = Batch.empty()
    copy.unpack(batch.pack())
    np.testing.assert_array_equal(copy.node, batch.node)
