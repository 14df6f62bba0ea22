"""Every attack finds something in a strategy that leaks, and nothing in one that does not."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from leaky import LEAKS, Leaky, make_tables

from flwr_vertical.products.streams import stream
from simulations.attacks.distances import scale_candidates
from simulations.attacks.labels import labels_from
from simulations.attacks.opened import find_subset, isolated
from simulations.attacks.recording import PRODUCTS, record
from simulations.attacks.score import Guess, score
from simulations.attacks.span import two_valued
from simulations.attacks.suite import ATTACKS, Material, attack_run
from simulations.attacks.vectors import basis, families
from simulations.attacks.views import GOT, SERVER, WORKED, Item, View, aligned_truth, views_of

# Leak, attack that must find it, share of all cells, whole columns.
BITES = [
    ("fits", "span, half of the rows known", 0.45, 6),
    ("fits", "0/1 columns in the span", 0.45, 3),
    ("coefficients", "known coefficients", 0.99, 6),
    ("column", "single vectors", 0.45, 3),
    ("distances", "distances", 0.7, 6),
    ("scaled distances", "distances", 0.7, 6),
    ("pad", "pads used twice", 0.45, 3),
]


@pytest.fixture(scope="module")
def found():
    made = {}

    def get(leak):
        if leak not in made:
            tables, labels = make_tables()
            made[leak] = attack_run(record(Leaky(leak), tables, labels))
        return made[leak]

    return get


@pytest.mark.parametrize(("leak", "attack", "cells", "columns"), BITES)
def test_what_leaks_is_found(found, leak, attack, cells, columns):
    (finding,) = [f for f in found(leak) if f.view == SERVER and f.attack == attack]
    assert finding.beyond >= cells
    assert finding.columns == columns


def test_labels_that_reach_parties_are_found(found):
    gains = [f.cells for f in found("labels") if f.attack == "labels"]
    assert len(gains) == 3
    assert min(gains) > 0.3


def test_nothing_is_found_where_nothing_leaks(found):
    assert [f for f in found("nothing") if f.cells or f.columns] == []
    assert {f.attack for f in found("nothing")} == {*ATTACKS, "labels"}
    assert {f.view for f in found("nothing")} == {SERVER, "bank", "court", "hospital"}
    assert {leak for leak, *_ in BITES} == {*LEAKS} - {"nothing", "labels"}  # every leak is tried


def test_flags_follow_from_a_span_alone():
    """Also where a vector singles out one row."""
    rng = np.random.default_rng(0)
    n = 300
    flags = (rng.random((n, 3)) < [0.1, 0.3, 0.5]).astype(float)
    one = np.zeros((n, 1))
    one[7] = 1.0
    numbers = rng.normal(size=(n, 2))
    for columns in ([flags, numbers], [flags, numbers, one]):
        table = np.hstack(columns)
        span = basis(table @ rng.normal(size=(table.shape[1], table.shape[1])))
        got = two_valued(span)
        for flag in flags.T:
            at_hand = ((f[~np.isnan(f)], v[~np.isnan(f)]) for f in got for v in (flag, 1 - flag))
            assert any(np.array_equal(*pair) for pair in at_hand)
    assert two_valued(basis(numbers)) == []


def test_rare_flags_and_small_groups_follow_from_one_sum():
    rng = np.random.default_rng(1)
    for n, ones in ((400, [11]), (400, [3, 250]), (150, [5, 70, 149]), (30, range(0, 30, 2))):
        labels = rng.normal(size=(n, 1))
        chosen = find_subset(labels, labels[list(ones)].sum(axis=0), len(list(ones)))
        np.testing.assert_array_equal(np.sort(chosen), list(ones))
    # Labels of few values fit many sets.
    labels = rng.integers(0, 3, (100, 1)).astype(float)
    assert find_subset(labels, labels[[3, 9]].sum(axis=0), 2) is None


def test_sums_over_three_sets_isolate_a_row():
    """A+B, A+i, B differ from each other in hundreds of rows."""
    of = np.repeat([0, 1, 2], [200, 200, 1])  # rows of A, of B, and i
    sets = ([0, 0, -1], [0, -1, 0], [-1, 0, -1])
    groups = [np.array(member)[of] for member in sets]
    smallest, weights = isolated(groups)[0]
    np.testing.assert_array_equal(smallest, [400])
    np.testing.assert_allclose(weights @ [400.0, 201.0, 200.0], 1.0, atol=1e-9)
    assert len(isolated(groups[:1])[0][0]) == 400


def test_scales_follow_where_three_rows_of_distances_meet():
    rng = np.random.default_rng(2)
    x, scale = rng.normal(size=(20, 5)), rng.uniform(0.1, 9, 20)
    square = ((x[:, None] - x[None]) ** 2).sum(axis=-1)

    def seen(i, shift=0.0):
        others = rng.permutation(np.delete(np.arange(20), i))
        return scale[i] * (square[i, others] + shift)

    got = scale_candidates(np.array([seen(0), seen(1), seen(2)]))
    assert np.abs(got - np.log(scale[0] / scale[1])).min() < 1e-6
    assert len(got) <= 2
    shifted = np.array([seen(i, shift) for i, shift in enumerate((2.0, 5.0, 1.0))])
    assert len(scale_candidates(shifted)) == 0


def test_scores_count_cells_beyond_chance():
    tables, _ = make_tables(missing=True)
    run = record(Leaky(), tables)
    truth = aligned_truth(run, views_of(run)[SERVER].positions)
    rows = np.arange(300)
    number = truth["bank"]["bank.number"].to_numpy()
    rng = np.random.default_rng(0)
    everything = score([Guess(rows, 5 - 2 * number)], truth)
    assert everything.columns == 1
    assert everything.best == 1.0
    half = np.where(rows < 150, number, rng.normal(size=300))
    assert score([Guess(rows, half, affine=False)], truth).best == pytest.approx(0.5, abs=0.01)
    noise = [Guess(rows, rng.normal(size=300)) for _ in range(50)]
    assert score(noise, truth).cells == 0.0
    assert score([Guess(rows, np.zeros(300), affine=False)], truth).cells == 0.0  # all are 0
    assert score([Guess(rows, number)], truth, exclude="bank").cells == 0.0


def opened_view(columns, labels, groups, vectors=(), masked=()):
    """The server's view of products of columns with labels over groups of rows."""
    n = len(columns)
    items = []
    for at, group in enumerate(groups):
        parts = [np.flatnonzero(group == g) for g in range(int(group.max()) + 1)]
        opened = {
            "group": group,
            "vectors": labels,
            "sums": np.array([columns[rows].sum(axis=0) for rows in parts]),
            "products": np.array([columns[rows].T @ columns[rows] for rows in parts]),
            "with_vectors": np.array([columns[rows].T @ labels[rows] for rows in parts]),
        }
        items += [Item(at, PRODUCTS, WORKED, "", name, value) for name, value in opened.items()]
    items += [Item(9, "fit", WORKED, "", "fit", vector) for vector in vectors]
    items += [Item(9, "labels", GOT, SERVER, name, v, True) for name, v in masked]
    return View(
        who=SERVER, items=items, mask=np.zeros((n, 1), dtype=bool), parties=["bank"],
        positions={"bank": np.arange(n)}, labelled=np.ones(n, dtype=bool), labels=labels[:, 0],
        own=None,
    )  # fmt: skip


@pytest.fixture
def columns():
    rng = np.random.default_rng(3)
    rare = np.zeros(300)
    rare[[20, 190]] = 1.0
    return np.column_stack([rng.normal(50, 9, 300), rare * 5 - 2, rng.normal(size=300)])


def found_in(view, columns, attack):
    truth = {"bank": pd.DataFrame(columns, columns=["number", "rare", "other"])}
    return score(ATTACKS[attack](Material(view, families(view), truth)), truth)


def test_a_rare_value_follows_from_sums_of_labels(columns):
    labels = np.random.default_rng(4).normal(size=(300, 1))
    view = opened_view(columns, labels, [np.zeros(300, dtype=int)])
    assert found_in(view, columns, "subset sums").columns == 1
    halves = opened_view(columns[:30], labels[:30], [np.zeros(30, dtype=int)])
    assert found_in(halves, columns[:30], "subset sums").columns == 1


def test_as_many_labels_as_rows_give_the_columns(columns):
    rng = np.random.default_rng(5)
    groups = [np.repeat([0, 1], [20, 280])]
    many = opened_view(columns, rng.normal(size=(300, 19)), groups)
    assert found_in(many, columns, "projections on labels").cells == pytest.approx(
        20 / 300, abs=0.03
    )
    few = opened_view(columns, rng.normal(size=(300, 2)), groups)
    assert found_in(few, columns, "projections on labels").cells == 0.0


def test_sets_that_differ_in_a_row_give_it(columns):
    labels = np.random.default_rng(6).normal(size=(300, 1))
    every, fewer = np.zeros(300, dtype=int), np.zeros(300, dtype=int)
    fewer[77] = -1
    view = opened_view(columns, labels, [every, fewer])
    assert found_in(view, columns, "atoms of row sets").cells == pytest.approx(1 / 300)
    assert found_in(opened_view(columns, labels, [every]), columns, "atoms of row sets").cells == 0


def test_a_span_and_moments_give_the_columns(columns):
    """No coefficients are known: labels fix the rotation of two columns."""
    rng = np.random.default_rng(7)
    mixed = columns[:, [0, 2]] @ rng.normal(size=(2, 2))
    labels = columns[:, [0, 2]] @ rng.normal(size=(2, 1))
    view = opened_view(columns[:, [0, 2]], labels, [np.zeros(300, dtype=int)], mixed.T)
    truth = {"bank": pd.DataFrame(columns[:, [0, 2]], columns=["number", "other"])}
    material = Material(view, families(view), truth)
    guesses = list(ATTACKS["moments and span"](material))
    assert len(guesses) == 4  # one direction is fixed; the other is its complement, of two signs
    assert score(guesses, truth).columns == 2


def test_masked_labels_and_the_seed_of_their_mask_give_labels(columns):
    labels = np.random.default_rng(8).normal(size=(300, 1))
    seed = bytes(range(32))
    fixed = np.rint(labels * 2**20).astype(np.int64).view(np.uint64)
    masked = fixed + stream(seed, "rho", (300, 1))
    for given, gain in (([("v", masked), ("seed", seed)], 0.9), ([("v", masked)], 0.0)):
        view = opened_view(columns, labels, [np.zeros(300, dtype=int)], masked=given)
        own = [item for item in view.items if item.step != PRODUCTS]
        view = replace(view, who="bank", own=pd.DataFrame(columns), labels=None, items=own)
        assert labels_from(view, labels[:, 0]).gain == pytest.approx(gain, abs=0.1)
