"""Every attack finds something in a strategy that leaks, and nothing in one that does not."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from leaky import LEAKS, Leaky, make_tables

from simulations.attacks.distances import scale_candidates
from simulations.attacks.opened import find_subset, isolated
from simulations.attacks.recording import record
from simulations.attacks.score import Guess, score
from simulations.attacks.span import two_valued
from simulations.attacks.suite import ATTACKS, attack_run
from simulations.attacks.vectors import basis
from simulations.attacks.views import SERVER, aligned_truth, views_of

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


def test_every_leak_is_tried():
    assert {leak for leak, *_ in BITES} == {*LEAKS} - {"nothing", "labels"}


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
            assert any(
                np.array_equal(f[~np.isnan(f)], v[~np.isnan(f)])
                for f in got
                for v in (flag, 1 - flag)
            )
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
