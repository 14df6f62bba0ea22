"""Noisy fits of the sharing ADMM: what a run spends of each node's epsilon, and its noise."""

import logging

import numpy as np
import pytest
from ledgered import Nodes, labels_of, tables

from flwr_vertical import simulate
from flwr_vertical.errors import PartyError
from strategies.glm import VerticalGLM


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path, tables())


NOISY = VerticalGLM(exchange="sums", dp="admm", lambdas=0.1, dp_rounds=3, missing_labels="error")


def test_noisy_fits_are_one_release_of_all_rounds(nodes):
    nodes.state(exchanges="sums")
    labels = labels_of(tables())
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


def test_more_noisy_fits_than_were_announced_are_refused(nodes, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes.state(exchanges="sums")
    real = type(NOISY).party.sharing.group.admm

    def told_of_fewer(self, *args, rounds=0, **options):
        return real(self, *args, rounds=min(rounds, 2), **options)

    monkeypatch.setattr(type(NOISY).party.sharing.group, "admm", told_of_fewer)
    with pytest.raises(PartyError, match="1 more noisy fits are asked for"):
        nodes.run(NOISY, labels_of(tables()))


def test_the_noise_of_dp_admm_is_another_in_each_run_and_message():
    parties = tables()
    found = []
    for _ in range(2):
        strategy = VerticalGLM(exchange="sums", dp="admm", lambdas=0.05, dp_rounds=4)
        result = simulate(strategy, parties, labels_of(parties), progress=False)
        found.append(result.coefficients["estimate"].to_numpy())
    assert not np.array_equal(*found)
