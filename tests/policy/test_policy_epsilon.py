"""Releases with privacy noise spend the node's budget, over columns, runs and greetings."""

import itertools
import logging
import math

import numpy as np
import pytest
from ledgered import N, Nodes, tables

from flwr_vertical.errors import PartyError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES
from strategies.copula import VCDS
from strategies.copula.party import CopulaParty


def of_a_record(epsilon, n, n_columns):
    """Epsilon of one record by basic composition, from the definition of the release.

    Half of a column's epsilon turns each of n - 1 comparisons round with chance theta, a multiple
    of 2^-16, the other half is for the margin.
    """
    theta = (math.floor(2**16 / (1 + math.exp(epsilon / 4))) + 1) / 2**16
    return n_columns * ((n - 1) * math.log((1 - theta) / theta) + 3 * epsilon / 4)


BANK = of_a_record(0.1, N, 2)


def ranks_sent(transcript):
    return [
        record.node_id
        for record in transcript
        if record.direction == "up" and "ranks" in decode(record.content, VALUES)
    ]


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path, tables())


def test_a_release_is_written_down_with_what_it_costs_a_record(nodes):
    nodes.run(VCDS(epsilon=0.1), forgetful=True)  # asked twice, released and spent once
    (entry,) = nodes.entries("epsilon")
    assert entry["epsilon"] == pytest.approx(BANK, rel=1e-12)
    assert "2 columns; 0.1 a column by the count of its paper (VDADP)" in entry["what"]
    assert nodes.ledger("court").state["epsilon"] == pytest.approx(of_a_record(0.1, N, 1))


def test_epsilon_adds_up_over_runs_to_the_total(nodes):
    nodes.state(policy_epsilon_total=2.5 * BANK)
    for _ in range(2):
        nodes.run(VCDS(epsilon=0.1))
    said = nodes.refused("epsilon-total", VCDS(epsilon=0.1))
    assert f"after {2 * BANK:g} in 2 release(s)" in said
    assert f"policy.epsilon-total={3 * BANK:g}" in said
    assert nodes.ledger().state["epsilon"] == pytest.approx(2 * BANK)
    nodes.run(VCDS(epsilon=0.01))  # what is left is enough for it


def test_without_a_total_one_release_is_all(nodes):
    nodes.run(VCDS(epsilon=0.1))
    nodes.refused("epsilon-total", VCDS(epsilon=0.1))
    assert ranks_sent(nodes.transcript) == []
    (entry,) = nodes.entries("refused")
    assert entry["what"].startswith("policy.epsilon-total: asked epsilon")


ASKED = {"epsilon": 0.1, "budget": "per-variable", "rank_share": 0.5, "margin_noise": "increments",
         "bounds": "", "impute": False}  # fmt: skip


def test_many_greetings_release_once(nodes, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes.state(max_epsilon=0.1)
    with nodes.grid(VCDS(epsilon=0.1)) as grid:
        nodes.greet(grid).call("perturb", ASKED)
        for _ in range(25):
            with pytest.raises(PartyError, match=r"policy\.epsilon-total"):
                nodes.greet(grid).call("perturb", ASKED)
    assert sorted(ranks_sent(nodes.transcript)) == [1, 2]
    assert nodes.ledger().runs[0]["greetings"] == 26
    assert len(nodes.entries("epsilon")) == 1
    assert 0 < len(nodes.entries("refused")) <= 20  # not for ever


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"epsilon": 0.2}, r"policy\.max-epsilon: asked: epsilon 0\.2"),
        ({"rank_share": 100.0}, "rank_share must be between 0 and 1, got 100"),
        ({"rank_share": 2.0}, "rank_share must be between 0 and 1, got 2"),
        ({"budget": "none"}, "budget must be one of"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": math.inf}, "epsilon must be above 0 and finite"),
        ({"rows": np.zeros(40, dtype=np.int64)}, "numbers of aligned rows.*each once"),
        ({"rows": np.array([0, N])}, "numbers of aligned rows"),
    ],
)
def test_a_server_cannot_ask_for_less_noise_by_other_arguments(nodes, monkeypatch, more, says):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes.state(max_epsilon=0.1, policy_epsilon_total=1e6)
    with nodes.grid(VCDS(epsilon=0.1)) as grid:
        federation = nodes.greet(grid)
        with pytest.raises(PartyError, match=says):
            federation.call("perturb", ASKED | more)
    assert nodes.entries("epsilon") == []


def test_other_public_ranges_are_another_release(nodes, monkeypatch):
    """Ranges decide how much of the key stream a margin takes: the ranks after it change."""
    perturb = CopulaParty.perturb

    def of_a_lost_process(self, *args, **asked):
        asked["bounds"] = f'{{"income": [-{next(count)}, 9]}}'
        return perturb(self, *args, **asked)

    count = itertools.count(5)
    of_a_lost_process.__dict__.update(perturb.__dict__)
    monkeypatch.setattr(CopulaParty, "perturb", of_a_lost_process)
    nodes.refused("epsilon-total", VCDS(epsilon=0.1), forgetful=True)
    assert len(nodes.entries("epsilon")) == 1
