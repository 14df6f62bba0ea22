"""A node blinds few IDs of others, so that guessing them finds out who is in its table."""

import logging

import numpy as np
import pandas as pd
import pytest
from ledgered import N, Nodes, labels_of, tables

from apps.cli.align import AlignOnly
from flwr_vertical import simulate
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.crypto import commutative
from flwr_vertical.errors import PartyError
from flwr_vertical.privacy_ledger.summary import LedgerSummary

PROTOCOLS = ["private-id", BlindRsaAligner(bits=2048)]


def guesses(count):
    """All numbers of a small place, as in a label file of the server's own."""
    return pd.Series(np.zeros(count), index=pd.Index([f"c{i:03}" for i in range(count)]), name="y")


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["private-id", "blind-rsa"])
def test_listed_guesses_are_refused_and_honest_labels_are_not(tmp_path, protocol):
    nodes = Nodes(tmp_path, tables())
    nodes.run(
        AlignOnly(), labels_of(tables()), alignment=protocol, forgetful=protocol == "private-id"
    )
    # The court's 150 IDs and the server's 150; the answer that was lost counts once.
    assert sum(entry["n_rows"] for entry in nodes.entries("ids")) == 2 * N
    count = 10 * N + 1
    said = nodes.refused("foreign-ids", AlignOnly(), guesses(count), alignment=protocol)
    assert "allowed: 1,500 in a run, for 150 rows of its own" in said
    nodes.state(policy_foreign_ids=11.1)
    nodes.run(AlignOnly(), guesses(count), alignment=protocol)
    nodes.state(policy_foreign_ids=0.5)
    nodes.refused("foreign-ids", AlignOnly(), labels_of(tables()), alignment=protocol)


def test_a_second_greeting_gives_no_further_guesses(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes = Nodes(tmp_path, tables(), **{"policy.foreign-ids": 3.0})
    key = commutative.generate_blinding_key()

    def guess(federation, first):
        ids = [f"c{i:03}".encode() for i in range(first, first + N)]
        points = commutative.hash_and_blind(ids, b"nonce" * 4, key)
        asked = {"points": points, "sender": "server"}
        return federation.call("blind_for", per_party={"bank": asked}, parties=["bank"])

    with nodes.grid(AlignOnly()) as grid:
        guess(nodes.greet(grid, "private-id"), 0)  # beside the court's own
        second = nodes.greet(grid, "private-id")  # whose points are others, under new keys
        with pytest.raises(PartyError, match=r"policy\.foreign-ids.* 600 IDs"):
            guess(second, N)
    assert [entry["n_rows"] for entry in nodes.entries("ids")] == [N, N, N]


def test_without_a_ledger_the_bound_holds_within_the_run():
    parties = {name: table.iloc[:120] for name, table in tables().items()}
    with pytest.raises(PartyError, match=r"'bank' refuses by policy\.foreign-ids"):
        simulate(AlignOnly(), parties, guesses(6000), alignment="private-id", progress=False)


def test_small_tables_are_aligned_with_larger_ones():
    parties = tables()
    parties["bank"] = parties["bank"].iloc[:3]
    parties["court"] = parties["court"].iloc[:100]
    found = simulate(AlignOnly(), parties, alignment="private-id", progress=False)
    assert found.metrics["samples"] == 100


def test_simulated_runs_are_runs_of_their_own_in_ledgers_that_stay(tmp_path):
    parties = tables()
    parties["bank"] = parties["bank"].iloc[:60]  # may blind 600 IDs in a run, and blinds 300
    policy = {"modules": "apps.cli.align:AlignOnly"}
    for _ in range(4):
        simulate(AlignOnly(), parties, labels_of(tables()), alignment="private-id", policy=policy,
                 ledgers=tmp_path, progress=False)  # fmt: skip
    runs = LedgerSummary.of(tmp_path / "bank.privacy-ledger.sqlite").runs
    assert len(runs) == len({run["name"] for run in runs}) == 4
