"""Pauses between looks at nodes: short at first, and never longer than stated."""

from itertools import islice

import pytest

from flwr_vertical.grids.poll import pauses


def test_pauses_grow_to_the_longest():
    found = list(islice(pauses(1.0), 30))
    assert found[0] == 0.01
    assert found == sorted(found)
    assert found[-1] == 1.0
    assert sum(islice(pauses(1.0), 12)) < 3  # few looks in the first seconds


@pytest.mark.parametrize("longest", [0.0, 0.002])
def test_the_longest_may_be_shorter_than_the_first(longest):
    assert set(islice(pauses(longest), 5)) == {longest}
