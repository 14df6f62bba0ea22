"""Noisy sums spend a node's epsilon: once a release, over runs, at most what its policy says."""

import numpy as np
import pytest
from ledgered import N, Nodes, labels_of, tables

from flwr_vertical.errors import PartyError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES
from flwr_vertical.server import Federation
from strategies.glm import VerticalGLM
from strategies.least_squares import CompleteCase

BOUNDS = {"income": (-5, 5), "age": (-5, 5), "debts": (-5, 5), "y": (-8, 10)}
PRIVATE = CompleteCase(epsilon=0.5, bounds=BOUNDS)


def sums_sent(transcript):
    return [
        values["sums"]
        for message in transcript
        if message.direction == "up" and "sums" in (values := decode(message.content, VALUES))
    ]


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path, tables(), **{"min-rows": 20})


@pytest.fixture
def labels():
    return labels_of(tables())


def test_a_release_is_written_down_before_it_leaves_and_once(nodes, labels):
    nodes.run(PRIVATE, labels, forgetful=True)  # every message is answered twice
    for name in nodes.configs:
        (entry,) = nodes.entries("epsilon", name)
        assert (entry["epsilon"], entry["delta"]) == (0.5, 1e-6)
        assert "with noise" in entry["what"]
        assert nodes.ledger(name).state["epsilon"] == 0.5


def test_noisy_sums_use_up_neither_rows_nor_label_vectors(nodes, labels):
    """Epsilon counts them, so that exact sums may be told of other rows later."""
    nodes.state(policy_epsilon_total=10)
    for number in range(3):
        missing = labels.copy()
        missing.iloc[number] = np.nan  # row sets that differ by one row
        nodes.run(PRIVATE, missing)
    assert nodes.entries("rows") == []
    assert nodes.ledger().state["epsilon"] == pytest.approx(1.5)


def test_another_run_is_another_release(nodes, labels):
    nodes.run(PRIVATE, labels)
    said = nodes.refused("epsilon-total", PRIVATE, labels)
    assert "after 0.5 in 1 release(s)" in said
    assert sums_sent(nodes.transcript) == []
    nodes.state(policy_epsilon_total=1.2)
    nodes.run(VerticalGLM(epsilon=0.7, delta=1e-5, bounds=BOUNDS), labels)
    assert nodes.ledger().state["epsilon"] == pytest.approx(1.2)


def test_a_node_that_allows_less_is_named_before_anything_leaves(nodes, labels):
    nodes.configs["court"]["policy.max-epsilon"] = 0.25
    said = nodes.refused("max-epsilon", PRIVATE, labels)
    assert "party 'court'" in said
    assert "allowed: 0.25" in said
    assert sums_sent(nodes.transcript) == []
    assert nodes.entries("epsilon") == []


@pytest.mark.parametrize("change", ["group", "attempt", "commitment"])
def test_a_second_release_in_a_run_is_refused(nodes, labels, monkeypatch, change):
    nodes.state(policy_epsilon_total=100)
    once, refused = Federation.sum, []

    def twice(self, step, arguments=None, **options):
        total = once(self, step, arguments, **options)
        if step == "open_products":
            other = dict(arguments)
            if change == "group":
                other["group"] = np.where(np.arange(N) < 20, -1, other["group"])
            other["attempt"] = bytes(16) if change != "commitment" else arguments["attempt"]
            if change == "commitment":
                other["commitment"] = bytes(32)
            with pytest.raises(PartyError) as caught:
                once(self, step, other, **options)
            refused.append(str(caught.value))
        return total

    monkeypatch.setattr(Federation, "sum", twice)
    nodes.run(PRIVATE, labels)
    expected = {
        "group": "has made its release of this run",
        "attempt": "the same noise would cancel",
        "commitment": "differ from those that it committed to",
    }
    assert expected[change] in refused[0]
    assert nodes.ledger().state["epsilon"] == 0.5
