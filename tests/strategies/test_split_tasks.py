"""Whose embeddings enter a sum: what is drawn, and that the draws have the right mean."""

import itertools

import numpy as np
import pytest

from strategies.split.methods import draw_tasks

HELD = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0]], dtype=bool)


def test_all_that_hold_a_row_enter_where_nothing_is_left_out():
    tasks = draw_tasks("observed", HELD, 0.5, np.random.default_rng(0))
    np.testing.assert_array_equal(tasks.takes, HELD[None])
    np.testing.assert_array_equal(tasks.weights, np.ones((1, 4)))


@pytest.mark.parametrize("drop", [0.0, 0.5, 1.0])
def test_parties_are_left_out_at_random_but_for_the_last_one(drop):
    held = np.tile(HELD, (3000, 1))
    takes = draw_tasks("dropped", held, drop, np.random.default_rng(1)).takes[0]
    assert not (takes & ~held).any()
    assert takes.any(axis=1).all()
    # A row with n parties keeps each with 1 - p, or one of them where all would go.
    n = HELD.sum(axis=1)
    expected = (1 - drop) + drop**n / n
    found = (takes.sum(axis=1) / held.sum(axis=1)).reshape(3000, 4).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / np.sqrt(3000))


def test_subsets_have_the_mean_of_all_subsets():
    """Any function of a subset: the weighted mean over draws is its mean over all subsets."""
    rng = np.random.default_rng(2)
    value = {s: rng.normal() for n in range(1, 5) for s in itertools.combinations(range(4), n)}
    held = np.tile(HELD, (4000, 1))
    tasks = draw_tasks("subsets", held, 0.5, rng)
    assert tasks.takes.shape == (4, len(held), 4)
    np.testing.assert_allclose(tasks.weights.sum(axis=0), 1.0, rtol=1e-12)
    assert not (tasks.takes & ~held).any()
    sizes = tasks.takes.sum(axis=-1)
    assert set(np.unique(sizes[tasks.weights > 0])) == {1, 2, 3, 4}
    assert (sizes[tasks.weights == 0] == 0).all()
    found = np.zeros(len(held))
    for t, i in zip(*np.nonzero(tasks.weights), strict=True):
        found[i] += tasks.weights[t, i] * value[tuple(np.flatnonzero(tasks.takes[t, i]))]
    found = found.reshape(4000, 4)
    for row, mean, error in zip(
        HELD, found.mean(axis=0), found.std(axis=0) / np.sqrt(4000), strict=True
    ):
        own = [v for s, v in value.items() if row[list(s)].all()]
        assert len(own) == 2 ** row.sum() - 1
        assert abs(mean - np.mean(own)) <= 4 * error + 1e-12
