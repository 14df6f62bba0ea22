"""Groups of values, rules, and pairs of attributes, against pandas and plain loops."""

import numpy as np
import pandas as pd
import pytest

from strategies.fedpsg.association_rules import (
    NONE,
    STEPS,
    draw_groups,
    group_values,
    indicators,
    kept_counts,
    rest_values,
    shares,
    values_of_groups,
    values_of_sources,
    weights_of,
    with_rule,
)
from strategies.fedpsg.attribute_pairs import Pair, choose_pairs, rows_of_pairs


def rng():
    return np.random.default_rng(5)


def test_bins_are_quantiles_and_keep_equal_values_together():
    values = np.concatenate([rng().normal(size=970), np.zeros(200), [np.nan] * 30])
    groups = group_values(values, numeric=True, most=10, minimum=50)
    numbers = groups.numbers(values)
    assert (numbers[np.isnan(values)] == NONE).all()
    assert len(set(numbers[values == 0.0])) == 1
    counts = np.bincount(numbers[numbers >= 0])
    assert counts.min() >= 50
    assert len(groups) <= 10
    assert counts.sum() == 1170
    # As pandas cuts them, but for the bin that the ties make large.
    free = rng().permutation(1000).astype(float)
    expected = pd.qcut(free, 10, labels=False)
    np.testing.assert_array_equal(group_values(free, True, 10, 1).numbers(free), expected)


def test_few_numbers_have_a_bin_each_and_rare_ones_join_a_neighbour():
    values = np.repeat([1.0, 2.0, 5.0, 9.0], [40, 3, 40, 2])
    groups = group_values(values, numeric=True, most=20, minimum=10)
    assert [set(m) for m in groups.members] == [{1.0}, {2.0, 5.0, 9.0}]
    exact = group_values(values, numeric=True, most=20, minimum=1)
    np.testing.assert_array_equal(
        exact.numbers(np.array([1.0, 2, 5, 9, 100, -3])), [0, 1, 2, 3, 3, 0]
    )
    np.testing.assert_array_equal(exact.medians, [1, 2, 5, 9])
    assert group_values(values[:3], True, 20, 10).members == ()


def test_levels_keep_the_commonest_and_none_that_is_rare():
    codes = np.repeat([0.0, 1.0, 2.0, 3.0], [50, 5, 30, 40])
    groups = group_values(codes, numeric=False, most=2, minimum=10)
    numbers = groups.numbers(np.array([0.0, 1.0, 2.0, 3.0, 7.0, np.nan]))
    np.testing.assert_array_equal(numbers, [0, NONE, NONE, 1, NONE, NONE])
    np.testing.assert_array_equal(indicators(numbers[:4], 2), [[1, 0], [0, 0], [0, 0], [0, 1]])


def test_shares_are_those_of_a_cross_tabulation():
    a, b = rng().integers(0, 4, size=(2, 500))
    counts = pd.crosstab(a, b)
    np.testing.assert_allclose(
        shares(counts.to_numpy()), pd.crosstab(a, b, normalize="index"), atol=1e-15
    )
    kept = kept_counts(counts.to_numpy(), 30)
    assert ((kept == 0) | (kept >= 30)).all()
    assert kept.max() == counts.to_numpy().max()
    assert (shares(np.zeros((2, 3), dtype=int)) == 0).all()


def test_largest_shares_are_chosen_and_ties_at_random():
    counts = np.array([[5, 9, 9, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    weights = weights_of(counts, "argmax")
    np.testing.assert_array_equal(weights, [[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    drawn = draw_groups(weights, np.repeat([0, 1, 2, NONE], 500), rng())
    first = np.bincount(drawn[:500], minlength=4)
    assert first[[0, 3]].sum() == 0
    assert 200 < first[1] < 300
    assert (drawn[500:1000] == NONE).all()
    assert (drawn[1000:1500] == 0).all()
    assert (drawn[1500:] == NONE).all()


def test_draws_follow_the_shares():
    counts = np.array([[10, 70, 20], [0, 0, 40]])
    weights = weights_of(counts, "draw")
    np.testing.assert_allclose(weights / STEPS, shares(counts), atol=0.5 / STEPS)
    drawn = draw_groups(weights, np.zeros(20_000, dtype=int), rng())
    found = np.bincount(drawn, minlength=3) / 20_000
    np.testing.assert_allclose(found, [0.1, 0.7, 0.2], atol=0.015)  # four standard deviations
    assert (draw_groups(weights, np.ones(50, dtype=int), rng()) == 2).all()
    np.testing.assert_array_equal(
        with_rule(np.array([[1, 0], [0, 0]]), np.array([0, 1, NONE])), [0, NONE, NONE]
    )


def test_values_stand_for_groups():
    values = np.array([1.0, 2.0, 3.0, 10.0, 30.0])
    groups = group_values(values, numeric=True, most=2, minimum=2)
    assert [list(m) for m in groups.members] == [[1.0, 2.0], [3.0, 10.0, 30.0]]
    numbers = np.array([0, 1, NONE])
    np.testing.assert_array_equal(
        values_of_groups(groups, numbers, False, rng()), [1.0, 10.0, np.nan]
    )
    drawn = values_of_groups(groups, np.ones(60, dtype=int), True, rng())
    assert set(drawn) == {3.0, 10.0, 30.0}
    weights = np.array([[1, 3], [0, 0], [2, 1]], dtype=np.uint16)
    sources = np.array([0, 1, 2, NONE])
    np.testing.assert_allclose(
        values_of_sources(groups, weights, sources, "continuous"),
        [(1.5 + 3 * 43 / 3) / 4, np.nan, (2 * 1.5 + 43 / 3) / 3, np.nan],
    )
    for kind, expected in (("ordinal", [10.0, 1.0]), ("categorical", [10.0, 1.0])):
        found = values_of_sources(groups, weights, sources[[0, 2]], kind)
        np.testing.assert_array_equal(found, expected)


def test_the_rest_follows_the_column_alone():
    seen = np.array([1.0, 1.0, 4.0])
    assert list(rest_values(seen, 2, True, False, rng())) == [2.0, 2.0]
    assert list(rest_values(seen, 2, False, False, rng())) == [1.0, 1.0]
    assert set(rest_values(seen, 200, True, True, rng())) == {1.0, 4.0}


def test_pairs_are_the_largest_correlations_whatever_their_sign():
    correlations = {
        ("a", "b"): np.array([[0.1, -0.9, 0.0], [0.2, 0.3, np.nan]]),
        ("a", "c"): np.array([[0.5], [0.4]]),
        ("b", "c"): np.array([[0.7], [-0.1], [0.6]]),
    }
    found = choose_pairs(correlations, ["a", "b", "c"], ["b", "c"], 2)
    assert found == [
        Pair("b", 1, "a", 0, -0.9),
        Pair("b", 1, "c", 0, -0.1),
        Pair("b", 0, "c", 0, 0.7),
        Pair("b", 0, "a", 1, 0.2),
        Pair("c", 0, "b", 0, 0.7),
        Pair("c", 0, "a", 0, 0.5),
    ]
    few = choose_pairs(correlations, ["a", "b", "c"], ["b"], 3, threshold=0.65)
    assert few == [Pair("b", 1, "a", 0, -0.9), Pair("b", 0, "c", 0, 0.7)]


def test_a_sample_is_generated_by_the_first_party_that_has_it():
    found = [Pair("b", 0, "c", 0, 0.7), Pair("b", 0, "a", 1, 0.2), Pair("b", 1, "a", 0, 0.1)]
    mask = np.array([[0, 1, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=bool)
    rows = rows_of_pairs(found, ["a", "b", "c"], mask)
    assert [list(r) for r in rows] == [[0, 2], [1], [0, 1]]


@pytest.mark.parametrize("minimum", [1, 7])
def test_no_bin_is_smaller_than_the_minimum(minimum):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        values = np.rint(generator.exponential(3, size=generator.integers(minimum, 80)))
        groups = group_values(values, True, 6, minimum)
        counts = np.bincount(groups.numbers(values), minlength=len(groups))
        assert counts.min() >= minimum
        assert counts.sum() == len(values)
        assert [len(m) for m in groups.members] == list(counts)
