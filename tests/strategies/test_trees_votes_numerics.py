"""Shares of products that are dealt once, and what the arbiter sees of a forest's splits."""

from types import SimpleNamespace

import numpy as np
import pytest

from flwr_vertical.errors import ProtocolError, StateLostError
from flwr_vertical.products.streams import KeyStream
from strategies.forest.arbiter import JudgeSteps, pack_places, place, unpack_places
from strategies.forest.batch import Batch
from strategies.forest.gain_messages import Place, Sums, factors_of, limits_of, parcel, winners
from strategies.forest.model import VOTE_BITS, coefficients_of
from strategies.forest.share_arithmetic import (
    DealtSteps,
    dealt,
    helper_matrix,
    node_sums,
    owner_matrix,
)
from strategies.trees.arbiter import pack, unpack
from strategies.trees.node_sums import InMemory

KEY = bytes(range(32))


def ring(rng, *shape):
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


def test_shares_of_products_add_up_and_each_is_uniform():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (500, 7)).astype(np.uint64)
    y = rng.integers(0, 2, 500).astype(np.uint64)
    rho, pads = ring(rng, 500), KeyStream(KEY, "P", (500, 7))
    streams = KeyStream(KEY, "R", (500, 7))
    sent = dealt(InMemory(x + streams.rows(0, 500)).rows, x.shape[1], y, pads.rows)
    own = owner_matrix(7, streams.rows, pads.rows, y + rho)
    helped = helper_matrix(sent, [3, 4], [lambda a, b: streams.rows(a, b)[:, :3],
                                          lambda a, b: streams.rows(a, b)[:, 3:]], rho)  # fmt: skip
    expected = np.concatenate([x * y[:, None], y[:, None]], axis=1)
    np.testing.assert_array_equal(own + helped, expected)
    for share in (own, helped, sent):
        assert abs((share >> np.uint64(63)).mean() - 0.5) < 0.03
    # Sums over nodes of two trees, by weight, of the shares and of what they share.
    node = rng.integers(-1, 3, (2, 500))
    weight = rng.integers(0, 4, (2, 500))
    found = [node_sums(InMemory(m).rows, 8, node, weight, [3, 3]) for m in (own, helped, expected)]
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
    places = [Place(k, 2, np.arange(20 * k, 20 * k + 20), np.arange(20 - 20 * k, 40 - 20 * k),
                    observed) for k in (0, 1)]  # fmt: skip
    out = []
    for k, at in enumerate(places):
        # Of own slots the party has one share of the sums, of the other's the other one.
        totals = [halves[k], positives - halves[k]]
        mine = np.column_stack([shares[:, at.own], totals[0]])
        other = np.column_stack([(ones - shares)[:, at.helped], positives - halves[1 - k]])
        sums = Sums(counts[:, at.own], total, mine, other)
        out.append(parcel(sums, at, KEY, number, bytes([k]) * 32, 0))
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
