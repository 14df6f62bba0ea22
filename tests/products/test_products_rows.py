"""Groups of rows are never too small, lose as little as they can, and flags stay ambiguous."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_vertical.products.row_groups import flag_is_safe, group_rows, max_vectors, min_rows


def mask_of(counts, n_parties):
    rows = [np.tile(np.array(kind, dtype=bool), (n, 1)) for kind, n in counts.items()]
    return np.vstack(rows) if rows else np.zeros((0, n_parties), dtype=bool)


def test_large_groups_stay_as_they_are():
    mask = mask_of({(0, 0): 300, (0, 1): 200, (1, 0): 150}, 2)
    found = group_rows(mask, np.array([3, 4]), 1)
    assert len(found.mask) == 3
    np.testing.assert_array_equal(found.mask[found.group], mask)
    assert (found.n_merged, found.n_left_out) == (0, 0)


def test_a_small_group_gives_up_the_narrower_block():
    mask = mask_of({(0, 0): 20, (0, 1): 200, (1, 0): 200}, 2)
    found = group_rows(mask, np.array([3, 9]), 1)
    assert len(found.mask) == 2
    np.testing.assert_array_equal(found.mask[found.group[:20]], [[True, False]] * 20)
    assert (found.n_merged, found.n_left_out) == (20, 0)


def test_small_groups_join_each_other_before_they_are_left_out():
    mask = mask_of({(0, 0, 1): 60, (0, 1, 0): 60}, 3)
    found = group_rows(mask, np.array([2, 2, 2]), 1)
    np.testing.assert_array_equal(found.mask, [[False, True, True]])
    assert (found.n_merged, found.n_left_out) == (120, 0)
    alone = group_rows(mask_of({(0, 1): 60, (1, 0): 200}, 2), np.array([2, 2]), 1)
    assert alone.n_left_out == 60
    assert set(alone.group[:60]) == {-1}


def test_a_row_that_nobody_holds_is_in_no_group_and_is_not_counted():
    found = group_rows(mask_of({(0, 0): 200, (1, 1): 5}, 2), np.array([1, 1]), 1)
    assert set(found.group[200:]) == {-1}
    assert found.n_left_out == 0


@settings(deadline=None)
@given(
    st.dictionaries(
        st.tuples(*[st.integers(0, 1)] * 3), st.integers(1, 400), min_size=1, max_size=8
    ),
    st.tuples(*[st.integers(1, 60)] * 3),
    st.integers(0, 5),
)
def test_whatever_is_missing_no_group_is_too_small_and_nothing_is_invented(counts, widths, t):
    mask, widths = mask_of(counts, 3), np.array(widths)
    found = group_rows(mask, widths, t)
    for g, blocks in enumerate(found.mask):
        assert (found.group == g).sum() >= min_rows(int(widths[~blocks].sum()), t)
        assert not blocks.all()
    kept = found.group >= 0
    # A block that a party lacks stays missing; only existing ones are given up.
    assert (found.mask[found.group[kept]] >= mask[kept]).all()
    assert len({tuple(blocks) for blocks in found.mask}) == len(found.mask)
    changed = (found.mask[found.group[kept]] != mask[kept]).any(axis=1)
    assert found.n_merged == changed.sum()
    assert found.n_left_out == (~kept & ~mask.all(axis=1)).sum()


def test_the_minimum_of_a_group_may_be_lowered():
    mask = mask_of({(0, 0): 30, (0, 1): 200}, 2)
    assert group_rows(mask, np.array([1, 1]), 1, at_least=30).n_merged == 0
    assert group_rows(mask, np.array([1, 1]), 1).n_merged == 30


@pytest.mark.parametrize(("n_rows", "fewest"), [(100, 30), (200, 19), (1_000, 11), (10_000, 8)])
def test_flags_need_as_many_rare_ones_as_the_notes_say(n_rows, fewest):
    assert not flag_is_safe(n_rows, fewest - 1, 1)
    assert flag_is_safe(n_rows, fewest, 1)
    assert math.log2(math.comb(n_rows, fewest)) >= 84 > math.log2(math.comb(n_rows, fewest - 1))


def test_limits():
    assert flag_is_safe(50, 0, 3)
    assert not flag_is_safe(60, 30, 1)  # a balanced flag over few rows is not safe
    assert max_vectors(99) == 9
    assert min_rows(5, 1) == 100
    assert min_rows(50, 10) == 180


def test_with_many_parties_large_sets_are_found_and_complete_rows_stay_whole():
    """Ten parties, of which hardly any two rows share a pattern."""
    rng = np.random.default_rng(0)
    widths = np.full(10, 2)
    half = group_rows(rng.random((2000, 10)) < 0.5, widths, 1)
    parties = np.sort((~half.mask).sum(axis=1))
    assert (parties >= 3).sum() >= 7
    assert parties[-1] == 4
    assert half.n_left_out < 200
    mask = rng.random((2000, 10)) < 0.2
    fewer = group_rows(mask, widths, 1)
    complete = ~mask.any(axis=1)
    whole = np.flatnonzero(~fewer.mask.any(axis=1))
    np.testing.assert_array_equal(np.isin(fewer.group, whole), complete)


def test_with_a_minimum_of_one_row_every_pattern_is_a_group():
    mask = np.random.default_rng(1).random((3000, 10)) < 0.4
    found = group_rows(mask, np.full(10, 2), 1, at_least=1)
    held = ~mask.all(axis=1)
    np.testing.assert_array_equal(found.mask[found.group[held]], mask[held])
    assert found.n_merged == found.n_left_out == 0
