"""Rules on rows, vectors and levels over runs: over real messages, each run in new processes."""

import itertools

import pytest

from flwr_vertical.errors import PartyError
from tests.products.ledgered import Nodes

# More rows each than the values up to which a column counts as one of levels.
A, B, LONE = set(range(25)), set(range(25, 50)), {55}


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_three_runs_that_isolate_a_row_are_refused_in_any_order(tmp_path, order):
    """Whatever the order, the run that would complete the equation for one row is refused."""
    nodes = Nodes.of(tmp_path, policy__min_rows=20)
    sets = [A | B, A | LONE, B]
    refused = []
    for number, which in enumerate(order):
        if number:  # a cell of a row in none of the sets was corrected
            nodes.tables["bank"].iloc[52, 0] += 1.0
            nodes.write()
        try:
            nodes.run(nodes.labels(sets[which]))
        except PartyError as error:
            refused.append((number, str(error)))
    ((number, error),) = refused
    assert number > 0
    assert "refuses by policy.min-rows" in error
    assert "tell of 1 of its rows alone" in error


def n_vectors(nodes, party="bank"):
    return nodes.summary(party).state["vectors"]


@pytest.mark.parametrize("holder", [False, True], ids=["server's labels", "a party's labels"])
def test_the_same_labels_again_cost_nothing_in_another_order(tmp_path, holder):
    nodes = Nodes.of(tmp_path, policy__min_rows=20)
    first, other = nodes.labels(), nodes.labels(seed=1)
    for labels, counted in ((first, 1), (first, 1), (first.iloc[::-1], 1), (other, 2), (first, 2)):
        nodes.run(labels)
        assert [n_vectors(nodes, party) for party in nodes.tables] == [counted] * 2
