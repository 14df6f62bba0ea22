"""Releases with privacy noise spend the node's budget, over columns, runs and greetings."""

import itertools
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
from ledgered import N, Nodes, labels_of, tables

from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import VALUES
from flwr_vertical.server import Federation
from strategies.copula import VCDS
from strategies.copula.party import CopulaParty
from strategies.glm import VerticalGLM
from strategies.glm_admm import GLMADMM
from strategies.least_squares import CompleteCase
from strategies.marginals import MST


def of_a_record(epsilon, n, n_columns):
    """Epsilon of one record by basic composition, from the definition of the release.

    Half of a column's epsilon turns each of n - 1 comparisons round with chance theta, a multiple
    of 2^-16, the other half is for the margin.
    """
    theta = (math.floor(2**16 / (1 + math.exp(epsilon / 4))) + 1) / 2**16
    return n_columns * ((n - 1) * math.log((1 - theta) / theta) + 3 * epsilon / 4)


BANK = of_a_record(0.1, N, 2)


def sent(name, transcript):
    """Nodes that sent a value of a name."""
    return [
        record.node_id
        for record in transcript
        if record.direction == "up" and name in decode(record.content, VALUES)
    ]


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path, tables(), **{"min-rows": 20})


@pytest.fixture
def labels():
    return labels_of(tables())


def test_a_release_is_written_down_with_what_it_costs_a_record(nodes):
    nodes.run(VCDS(epsilon=0.1), forgetful=True)  # asked twice, released and spent once
    (entry,) = nodes.entries("epsilon")
    assert entry["epsilon"] == pytest.approx(BANK, rel=1e-12)
    assert "2 columns; 0.1 a column by the count of its paper (VDADP)" in entry["what"]
    assert nodes.ledger("court").state["epsilon"] == pytest.approx(of_a_record(0.1, N, 1))


def test_without_a_total_one_release_is_all(nodes):
    nodes.run(VCDS(epsilon=0.1))
    nodes.refused("epsilon-total", VCDS(epsilon=0.1))
    assert not sent("ranks", nodes.transcript)
    (entry,) = nodes.entries("refused")
    assert entry["what"].startswith("policy.epsilon-total: asked epsilon")


ASKED = VCDS(epsilon=0.1)._arguments(None)


def release(federation, **more):
    federation.call(
        "prepare_release", {key: ASKED[key] for key in ("bounds", "resolution", "margin")}
    )
    federation.call("perturb", ASKED | more)


def test_many_greetings_release_once(nodes, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes.state(max_epsilon=0.1)
    with nodes.grid(VCDS(epsilon=0.1)) as grid:
        release(nodes.greet(grid))
        for _ in range(25):
            with pytest.raises(PartyError, match=r"policy\.epsilon-total"):
                release(nodes.greet(grid))
    assert sorted(sent("ranks", nodes.transcript)) == [1, 2]
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
    """The protocol refuses them, and so does the release where no protocol is known."""
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes.state(max_epsilon=0.1, policy_epsilon_total=1e6)
    for refusal in (r"refuses step 'perturb': its argument", says):
        with nodes.grid(VCDS(epsilon=0.1)) as grid:
            federation = nodes.greet(grid)
            with pytest.raises(PartyError, match=refusal):
                release(federation, **more)
        nodes.know_no_protocol()
    assert nodes.entries("epsilon") == []


NOISY = GLMADMM(epsilon=1.0, lambdas=0.1, max_iter=3, missing_labels="error")


def test_noisy_fits_are_one_release_of_all_rounds(nodes, labels):
    nodes.state(exchanges="sums")
    result = nodes.run(NOISY, labels)
    (entry,) = nodes.entries("epsilon")
    assert entry["epsilon"] == pytest.approx(result.ledger.epsilon["bank"], rel=1e-9)
    assert entry["delta"] == 1e-5
    nodes.refused("epsilon-total", NOISY, labels)
    nodes.state(policy_epsilon_total=2.01 * entry["epsilon"])
    nodes.run(NOISY, labels, forgetful=True)
    assert nodes.ledger().state["releases"] == 2
    nodes.state(max_epsilon=entry["epsilon"] / 2)
    nodes.refused("max-epsilon", NOISY, labels)


def test_more_noisy_fits_than_were_announced_are_refused(nodes, labels, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes.know_no_protocol()
    real = type(NOISY).party.admm

    def told_of_fewer(self, *args, rounds=0, **options):
        return real(self, *args, rounds=min(rounds, 2), **options)

    monkeypatch.setattr(type(NOISY).party, "admm", told_of_fewer)
    with pytest.raises(PartyError, match="1 more noisy fits are asked for"):
        nodes.run(NOISY, labels)


def test_other_public_ranges_are_another_release(nodes, monkeypatch):
    """Ranges decide how much of the key stream a margin takes: the ranks after it change."""
    perturb = CopulaParty.perturb

    def of_a_lost_process(self, *args, **asked):
        asked["bounds"] = f'{{"income": [-{next(count)}, 9]}}'
        return perturb(self, *args, **asked)

    count = itertools.count(5)
    of_a_lost_process.__dict__.update(perturb.__dict__)
    nodes.know_no_protocol()
    monkeypatch.setattr(CopulaParty, "perturb", of_a_lost_process)
    nodes.refused("epsilon-total", VCDS(epsilon=0.1), forgetful=True)
    assert len(nodes.entries("epsilon")) == 1


BOUNDS = {"income": (-5, 5), "age": (-5, 5), "debts": (-5, 5), "y": (-8, 10)}
PRIVATE = CompleteCase(epsilon=0.5, bounds=BOUNDS)


def test_a_release_is_written_down_before_it_leaves_and_once(nodes, labels):
    nodes.run(PRIVATE, labels, forgetful=True)  # every message is answered twice
    for name in nodes.configs:
        (entry,) = nodes.entries("epsilon", name)
        assert (entry["epsilon"], entry["delta"]) == (0.5, 1e-6)
        assert "with noise" in entry["what"]
        assert nodes.ledger(name).state["epsilon"] == 0.5


@pytest.mark.parametrize("first", [PRIVATE, CompleteCase()], ids=["noisy", "exact"])
def test_noise_is_no_licence_to_single_out_a_row(nodes, labels, first):
    """A large epsilon is next to no noise: a difference of one row is refused all the same."""
    nodes.state(policy_epsilon_total=10)
    nodes.run(first, labels)
    spent = nodes.ledger().state["epsilon"]
    fewer = labels.copy()
    fewer.iloc[0] = np.nan
    said = nodes.refused("min-rows", PRIVATE, fewer)
    assert "sums that tell of 1 of its rows alone" in said
    assert nodes.ledger().state["epsilon"] == spent
    assert nodes.ledger().state["smallest_set"] >= 20


def test_another_run_is_another_release(nodes, labels):
    nodes.run(PRIVATE, labels)
    said = nodes.refused("epsilon-total", PRIVATE, labels)
    assert "after 0.5 in 1 release(s)" in said
    assert sent("sums", nodes.transcript) == []
    nodes.state(policy_epsilon_total=1.2)
    nodes.run(VerticalGLM(epsilon=0.7, delta=1e-5, bounds=BOUNDS), labels)
    assert nodes.ledger().state["epsilon"] == pytest.approx(1.2)


def test_a_node_that_allows_less_is_named_before_anything_leaves(nodes, labels):
    nodes.configs["court"]["policy.max-epsilon"] = 0.25
    said = nodes.refused("max-epsilon", PRIVATE, labels)
    assert "party 'court'" in said
    assert "allowed: 0.25" in said
    assert sent("sums", nodes.transcript) == []
    assert nodes.entries("epsilon") == []


@pytest.mark.parametrize("strategy", [CompleteCase(epsilon=0.5, bounds=BOUNDS), MST()])
def test_a_delta_near_1_is_no_way_around_epsilon(nodes, labels, strategy):
    with pytest.raises(ConfigError, match=r"delta.*at most 0\.001"):
        replace(strategy, delta=0.999)
    object.__setattr__(strategy, "delta", 0.999)  # a server that does not check
    assert "a delta of 0.001 at most" in nodes.refused("max-epsilon", strategy, labels)
    assert nodes.entries("epsilon") == []


OTHER = [
    ({"group": np.arange(N) // 20 - 1, "attempt": bytes(16)}, "has made its release of this run"),
    ({"attempt": bytes(16)}, "the same noise would cancel"),
    ({"commitment": bytes(32)}, "differ from those that it committed to"),
]


@pytest.mark.parametrize(("change", "says"), OTHER)
def test_a_second_release_in_a_run_is_refused(nodes, labels, monkeypatch, change, says):
    nodes.know_no_protocol()
    nodes.state(policy_epsilon_total=100)
    once, refused = Federation.sum, []

    def twice(self, step, arguments=None, **options):
        total = once(self, step, arguments, **options)
        if step == "open_products":
            if "group" in change:
                change["group"] = np.where(change["group"] < 0, -1, arguments["group"])
            with pytest.raises(PartyError) as caught:
                once(self, step, arguments | change, **options)
            refused.append(str(caught.value))
        return total

    monkeypatch.setattr(Federation, "sum", twice)
    nodes.run(PRIVATE, labels)
    assert says in refused[0]
    assert nodes.ledger().state["epsilon"] == 0.5


def test_without_a_policy_epsilon_is_bounded(nodes, labels):
    """An epsilon of 1e9 would be no noise, by settings alone."""
    said = nodes.refused("max-epsilon", VerticalGLM(epsilon=1e9, bounds=BOUNDS), labels)
    assert "allowed: 10" in said
    assert nodes.entries("epsilon") == []
