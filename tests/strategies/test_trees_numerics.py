"""Bins, sums over nodes, gains in whole numbers: each against the plainest computation."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Table
from flwr_vertical.errors import DataError, ProtocolError
from strategies.trees.binning import cut, fit_bins
from strategies.trees.gain import (
    Candidates,
    Derivatives,
    best_of,
    candidates,
    checked_layouts,
    columns_of,
    level_of,
    signed,
    to_ring,
)
from strategies.trees.node_sums import legal_splits, nodes_below, sides_of, slot_sums
from strategies.trees.objectives import Objective
from strategies.trees.tree import TreeNode, divide, leaf_values

FRAME = pd.DataFrame(
    {
        "x": [0.1, 0.5, 0.5, np.nan, 2.0, 3.0, 9.0, -1.0],
        "job": ["a", "b", "c", "a", None, "c", "c", "d"],
        "yes": [True, False, True, True, False, True, False, True],
        "few": [1, 1, 2, 2, 3, 3, 1, 2],
    }
)


@pytest.fixture(scope="module")
def made():
    table = Table.of(FRAME)
    bins = fit_bins(table, 4)
    return bins, bins.layout, bins.codes(table, "bank")


def rows_of_bins(values, edges):
    return np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)


def test_numbers_are_cut_between_values_or_by_their_rows():
    np.testing.assert_allclose(cut(np.array([3.0, 1.0, 1.0, 2.0]), 4), [1.5, 2.5])
    x = np.random.default_rng(0).normal(size=501)
    edges = cut(x, 16)
    assert len(edges) == 15
    counts = rows_of_bins(x, edges)
    assert counts.max() - counts.min() <= 1
    assert not np.isin(edges, x).any()
    one = np.nextafter(1.0, 2.0)  # no number lies between neighbours
    np.testing.assert_array_equal(rows_of_bins([1.0, one, 2.0], cut(np.array([1, one, 2]), 3)), 1)
    assert not len(cut(np.zeros(0), 3))


@pytest.mark.parametrize("share", [0.5, 0.92, 0.999])
def test_a_frequent_value_leaves_the_other_bins_to_the_others(share):
    """At quantiles a column that is 0 in 92 % of the rows had 3 of 31 edges."""
    rng = np.random.default_rng(1)
    x = np.where(rng.random(100_000) < share, 0.0, rng.lognormal(size=100_000))
    edges = cut(x, 32)
    assert len(edges) == 31
    zeros, *others = rows_of_bins(x, edges)
    assert zeros == (x == 0).sum()
    assert max(others) - min(others) <= 1


def test_bins_are_never_more_than_asked_nor_smaller_than_half_a_share():
    rng = np.random.default_rng(2)
    for most, least in ((2, 1), (8, 1), (32, 1), (32, 40)):
        for x in (
            rng.choice([1.0, 3.0, 5.0, 7.0, 9.0], 3000) + (rng.random(3000) < 0.02),
            np.where(rng.random(3000) < 0.4, 0.0, rng.normal(size=3000)),  # zeros in the middle
            np.round(rng.lognormal(3.0, 1.0, 3000)),
            np.round(rng.standard_cauchy(3000)),
        ):
            rows = rows_of_bins(x, cut(x, most, least))
            assert 1 < len(rows) <= most
            assert rows.min() >= least
            if len(np.unique(x)) > most:
                others = len(x) - np.sort(np.unique(x, return_counts=True)[1])[-most + 1 :].sum()
                assert rows.min() >= 0.5 * others / most


def test_codes_and_slots(made):
    bins, layout, codes = made
    assert layout.n_bins == (4, 4, 2, 3)
    assert layout.nominal == (False, True, False, False)
    assert layout.widths == [4, 5, 2, 3]
    assert codes[3, 0] == 4
    assert codes[4, 1] == 4
    np.testing.assert_array_equal(codes[:, 3], [0, 0, 1, 1, 2, 2, 0, 1])
    slots = layout.indicators(codes)
    for slot in range(layout.n_slots):
        column, at = layout.locate(slot)
        left = layout.goes_left(codes[:, column], column, at, False)
        np.testing.assert_array_equal(slots[:, slot], left)
        both = layout.goes_left(codes[:, column], column, at, True)
        np.testing.assert_array_equal(both, left | (codes[:, column] == layout.n_bins[column]))
    for wrong in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 3, 0]):
        with pytest.raises(DataError, match=r"expected \[4\] codes, got \d ranks"):
            bins.sorted_by(wrong)
    new = pd.DataFrame({"x": [-5.0], "job": ["unheard"], "yes": [False], "few": [2]})
    np.testing.assert_array_equal(
        bins.codes(Table.of(new, kinds={"job": "categorical"}), "bank"), [[0, 4, 0, 1]]
    )
    with pytest.raises(DataError, match=r"party 'bank'.*lacks the columns \['few'\]"):
        bins.codes(Table.of(FRAME.drop(columns="few")), "bank")


@pytest.mark.parametrize("are_sorted", [False, True])
@pytest.mark.parametrize("lacking", [True, False])
def test_slots_and_legal_splits_follow_from_what_is_sent(made, lacking, are_sorted):
    """Of complete columns, and of thresholds of sorted levels, less is sent, and no split lacks."""
    _, layout, codes = made
    codes = codes if lacking else codes[(codes != np.array(layout.n_bins)).all(axis=1)]
    complete = tuple((codes != np.array(layout.n_bins)).all(axis=0).tolist())
    assert complete == (not lacking, not lacking, True, True)
    whole = replace(layout, are_sorted=are_sorted)
    layout = replace(whole, complete=complete)
    assert layout.n_sent < layout.n_slots + (not are_sorted) < whole.n_slots + (not are_sorted)
    slots = layout.slots_of(layout.indicators(codes), np.ones(len(codes), dtype=np.uint64))
    for slot in range(layout.n_slots):
        column, at = layout.locate(slot)
        left = layout.goes_left(codes[:, column], column, at, False)
        np.testing.assert_array_equal(slots[:, slot], left)
    rng = np.random.default_rng(1)
    node, vector = rng.integers(-1, 2, len(codes)), rng.integers(0, 2**64, len(codes), np.uint64)
    sums = slot_sums(layout, codes, node, vector, 2)
    for q in (0, 1):
        np.testing.assert_array_equal(sums[q], vector[node == q] @ slots[node == q])
    legal = legal_splits(layout, codes, node, 2, 1).reshape(2, -1)
    numbers = Candidates.of([layout]).numbers
    assert 0 < legal.sum() == legal[:, numbers].sum()
    assert legal.sum() == legal_splits(whole, codes, node, 2, 1).sum()
    told = columns_of([whole, layout])
    assert checked_layouts(told, ["a", "b"], "b", layout) == (1, [whole, layout])
    with pytest.raises(ProtocolError, match=r"party 'a'.*other columns of it than it told"):
        checked_layouts(told, ["a", "b"], "a", layout)


def test_rare_levels_share_a_code():
    frame = pd.DataFrame({"town": list("aaabbbccdef")})
    bins = fit_bins(Table.of(frame), 4)
    np.testing.assert_array_equal(
        bins.codes(Table.of(frame), "bank")[:, 0], [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    )


def test_nodes_follow_from_those_above_by_a_bit_a_row():
    roots, below = np.array([[0, -1, 0, 0, 0], [1, 1, -1, 1, 1]]), np.array([0, 0, 2, 2])
    parent = np.array([-1, -1])
    node, last = None, [roots, np.array([[0, -1, 1, 1, 0], [2, 3, -1, 3, 2]])]
    last.append(np.array([[1, -1, -1, -1, 0], [2, -1, -1, -1, 3]]))
    for true, of in zip(last, (parent, np.array([0, 0, 1, 1]), below), strict=True):
        sides = np.unpackbits(sides_of(true, of), axis=1, count=5).astype(bool)
        node = nodes_below(node, of, sides)
        np.testing.assert_array_equal(node, true)
    for wrong in ([], [0], [-1, -1, -1], [0, 1], [4, 4], [-1, 0], [0, 0, 1]):
        with pytest.raises(ProtocolError, match="is of no level below one of 4 nodes"):
            nodes_below(node, np.array(wrong, dtype=np.int64), sides)
    with pytest.raises(ProtocolError, match="one for each tree"):
        nodes_below(None, below, sides)


def test_legal_splits_are_the_first_of_those_that_do_the_same(made):
    _, layout, codes = made
    node = np.array([0, 0, 0, 0, 0, 0, 0, 0])
    legal = legal_splits(layout, codes, node, 1, 2)[0]
    seen = {}
    for slot in range(layout.n_slots):
        column, at = layout.locate(slot)
        for side in (False, True):
            left = layout.goes_left(codes[:, column], column, at, side)
            key = column, left.tobytes()
            first = seen.setdefault(key, (slot, side)) == (slot, side)
            whole = left.sum() in (8, 8 - (codes[:, column] == layout.n_bins[column]).sum())
            enough = min(left.sum(), 8 - left.sum()) >= 2
            if side and whole:
                continue
            assert legal[slot, int(side)] == (first and enough), (slot, side)


@pytest.mark.parametrize("l2", [0.0, 2.0])
def test_whole_numbers_rank_splits_as_the_formula_of_gains(l2):
    rng = np.random.default_rng(3)
    n = 300
    y = (rng.random(n) < 0.3).astype(float)
    g, h = Objective("binary").gradients(y, rng.normal(size=(1, n)))
    inside = rng.random(n) < 0.9
    node = np.where(inside, rng.integers(0, 2, n), -1)[None]
    own = Derivatives.of(g[0], h[0], inside, l2)
    known = level_of(node, 2, g, [own], np.zeros(2, dtype=int))
    slots = rng.random((n, 12)) < 0.5
    slots[:, 5], slots[:, 11] = True, rng.random(n) < 0.8  # two columns of 6 slots
    slots[:, 6:] &= slots[:, [11]]
    observed = np.repeat([5, 11], 6)

    def sums(vector):
        found = np.zeros((2, 12), dtype=np.int64)
        for q in range(2):
            rows = node[0] == q
            found[q] = vector[rows] @ slots[rows]
        return to_ring(found)

    scale, slope = (to_ring(part)[:, None] for part in (known.scale, known.slope))
    of_slots = scale * sums(own.first) - slope * sums(own.second)
    numerator = candidates(of_slots, observed, to_ring(known.total_v))
    numerator = signed(numerator) + known.correction[:, None]
    left = candidates(sums(own.second), observed, to_ring(known.total_h))
    left = signed(left) + known.l2[:, None]
    right = (known.total_h + 2 * known.l2)[:, None] - left
    assert np.abs(numerator).max() <= known.limit_v.max()
    assert max(left.max(), right.max()) <= known.limit_h.max()
    for q in range(2):
        rows = node[0] == q
        gains, measured = [], []
        for c in range(24):
            side = slots[:, c // 2] | ((c % 2 == 1) & ~slots[:, observed[c // 2]])
            a, b = rows & side, rows & ~side
            if not (a.any() and b.any()):
                continue
            gain = sum(g[0][s].sum() ** 2 / (h[0][s].sum() + l2) for s in (a, b))
            gain -= g[0][rows].sum() ** 2 / (h[0][rows].sum() + 2 * l2)
            gains.append(gain)
            measured.append(float(numerator[q, c]) ** 2 / (float(left[q, c]) * right[q, c]))
        ratio = np.array(measured) / np.array(gains)
        best = int(np.argmax(gains))
        for share, tolerance in ((0.02, 1e-4), (0.3, 2e-5)):
            large = np.array(gains) > share * gains[best]
            np.testing.assert_allclose(ratio[large], ratio[best], rtol=tolerance)


def test_equal_gains_win_together_and_illegal_ones_never():
    x = np.array([[4.0, -4.0, 100.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
    one, legal = np.ones((2, 4)), np.array([[True, True, False, True], [False] * 4])
    np.testing.assert_array_equal(
        best_of(x, one, one, legal), [[True, True, False, False], [False] * 4]
    )


def test_rows_that_are_alike_are_not_split():
    g, h, inside = np.full((1, 10), 0.3), np.full(10, 0.2), np.ones(10, dtype=bool)
    own = [Derivatives.of(g[0], h, inside, 0.0)]
    known = level_of(np.zeros((1, 10), dtype=int), 1, g, own, np.zeros(1, dtype=int))
    assert known.flat.all()


def test_a_side_whose_loss_is_flat_gets_no_leaf():
    g, h = np.array([-0.5, -0.5, 1e-9, 1e-9]), np.array([0.2, 0.2, 1e-9, 1e-9])
    inside, left = np.ones(4, dtype=bool), np.array([True, True, False, False])
    tree = [TreeNode(np.arange(4), 4)]
    divide(tree, tree[0], left, inside, g, h, 0.0)
    assert len(tree) == 1
    np.testing.assert_allclose(leaf_values(tree, g, h, inside, 0.0), [2.5], rtol=1e-6)
    divide(tree, tree[0], left, inside, g, h, 1.0)
    assert [list(node.rows) for node in tree[1:]] == [[0, 1], [2, 3]]
    np.testing.assert_allclose(tree[0].gain, (1 / 1.4 - 1 / 1.4) / 2, atol=1e-7)
    assert leaf_values(tree, g, 0 * h, inside, 0.0)[2] == pytest.approx(-2e-9 / 1e-3)
