"""Exchanges that open numbers of single samples are counted, and bounded where a node says so."""

import numpy as np
import pandas as pd
import pytest
from ledgered import IDS, N, Nodes, labels_of, tables

from flwr_vertical.policy.describe import in_words
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.budgets import bits_of_row
from flwr_vertical.tables import Table
from strategies.fknn import FKNN
from tests.kit.rounds import Rounds

SUMS = Rounds(max_iter=3)
WHOLE = {"bank": 128.0, "court": 64.0}  # two numbers, and one


def incomplete():
    parties = tables()
    parties["bank"].iloc[::5, 0] = np.nan
    return parties


def test_a_row_holds_so_many_bits():
    frame = pd.DataFrame(
        {"x": [0.5, 1.5, 2.5], "flag": [True, False, True], "place": ["a", "b", "c"]}
    )
    # A number; true, false or missing; three places or missing.
    assert bits_of_row(Table.of(frame)) == 64 + 2 + 2


@pytest.mark.parametrize(
    "strategy",
    [SUMS, FKNN(n_neighbors=2, weights="distance")],
    ids=["rounds", "fknn"],
)
def test_an_exchange_by_consent_opens_whole_rows_and_is_counted_once_a_run(tmp_path, strategy):
    labels = None if strategy.name == "fknn" else labels_of(tables())
    nodes = Nodes(tmp_path, incomplete() if labels is None else tables())
    nodes.state(exchanges="sums,distances")
    nodes.run(strategy, labels, forgetful=True)
    for name, bits in WHOLE.items():
        entries = [entry for entry in nodes.entries("bits", name) if entry["bits"]]
        assert [(e["n_rows"], e["bits"]) for e in entries] == [(N, bits)]
        assert nodes.ledger(name).state["other_bits"] == bits


def test_stated_openings_bound_what_a_consent_allows(tmp_path):
    nodes, labels = Nodes(tmp_path, tables(), exchanges="sums"), labels_of(tables())
    nodes.state(policy_openings=127.0)
    said = nodes.refused("openings", SUMS, labels)
    assert "128 bits of 150 of its rows (fits of each sample" in said
    assert "policy.openings=128" in said
    assert nodes.ledger().state["other_bits"] == 0
    nodes.state(policy_openings=128.0)
    nodes.run(SUMS, labels)
    nodes.run(SUMS, labels)  # the same rows: there is nothing more to tell of them
    assert nodes.ledger().state["other_bits"] == 128
    changed = tables()
    changed["bank"].loc[IDS[0], "income"] += 1.0
    nodes.write(changed)
    nodes.refused("openings", SUMS, labels)
    nodes.state(policy_openings=256.0)
    nodes.run(SUMS, labels)


def test_ranks_of_donors_are_told_to_the_other_parties_and_counted(tmp_path):
    nodes = Nodes(tmp_path, incomplete())
    result = nodes.run(FKNN(n_neighbors=2))
    rows = int(result.metrics["rows-imputed"])
    width = 4 * 2 + 20
    for name, whole in WHOLE.items():
        (entry,) = nodes.entries("bits", name)
        assert entry["n_rows"] == rows == 30
        assert entry["bits"] == min(np.ceil(width * np.log2(N)), whole)
        assert entry["receiver"] == "the other parties"
        assert "group seed" in entry["colluding"]
    assert "are nearest, in order" in entry["what"]


def test_a_node_that_opens_nothing_of_a_row_refuses_ranks(tmp_path):
    nodes = Nodes(tmp_path, incomplete())
    nodes.state(policy_openings=0)
    said = nodes.refused("openings", FKNN(n_neighbors=2))
    assert "of 30 of its rows (which 28 donors are nearest, in order)" in said
    assert nodes.ledger().state["other_bits"] == 0


def test_one_party_tells_nobody_else(tmp_path):
    nodes = Nodes(tmp_path, {"bank": incomplete()["bank"]})
    nodes.state(policy_openings=0, policy_min_parties=1)
    nodes.run(FKNN(n_neighbors=2))
    assert nodes.entries("bits") == []


def test_words_say_what_bounds_openings():
    said = [" ".join(in_words(Policy(openings=bits))) for bits in (None, 0.0, 3.0)]
    assert "what a method's default exchange opens" in said[0]
    assert "Otherwise nothing of a single row is told." in said[1]
    assert "Otherwise others are told at most 3 bits of a row." in said[2]
