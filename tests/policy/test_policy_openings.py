"""Exchanges that open numbers of single samples are counted, and bounded where a node says so."""

import logging
import shutil

import numpy as np
import pandas as pd
import pytest
from ledgered import IDS, N, Nodes, labels_of, tables

from apps.cli.align import AlignOnly
from apps.cli.policy_words import in_words
from flwr_vertical import Table, simulate
from flwr_vertical.alignment.blind_rsa import BlindRsaAligner
from flwr_vertical.crypto import commutative
from flwr_vertical.errors import PartyError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger.budgets import bits_of_row
from flwr_vertical.privacy_ledger.database import reading
from flwr_vertical.privacy_ledger.stored_arrays import Arrays
from flwr_vertical.privacy_ledger.summary import LedgerSummary
from strategies.fknn import FKNN
from strategies.predict import Predict
from strategies.vfem import VFEM
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


@pytest.mark.parametrize("strategy", [SUMS, FKNN(n_neighbors=2, weights="distance")])
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


def test_without_a_stated_number_ten_versions_of_a_row_are_told(tmp_path):
    parties, strategy = incomplete(), FKNN()  # lists of as many bits as a row holds
    nodes = Nodes(tmp_path, parties)
    for _ in range(2):  # every run ranks donors anew; a row holds no more for that
        nodes.run(strategy)
        assert nodes.ledger("court").state["other_bits"] == WHOLE["court"]
    parties["court"].loc[IDS[1]] += 1.0  # not one of the rows that were told
    nodes.write(parties)
    nodes.run(strategy)
    for number in range(2, 12):
        parties["court"].loc[IDS[0]] += 1.0  # one of them
        nodes.write(parties)
        if number < 11:
            nodes.run(strategy)
            assert nodes.ledger("court").state["other_bits"] == number * WHOLE["court"]
    said = nodes.refused("openings", strategy)
    assert "of some of which 640 were told before" in said
    assert "allowed: 640 bits of a row over all runs" in said
    assert "policy.openings=704" in said
    nodes.state(policy_openings=704)
    nodes.run(strategy)


def test_ranks_of_donors_are_told_to_the_other_parties_and_counted(tmp_path):
    nodes = Nodes(tmp_path, incomplete())
    nodes.state(policy_openings=0)
    said = nodes.refused("openings", FKNN(n_neighbors=2))
    assert "of 30 of its rows (which 6 donors are nearest, in order)" in said
    assert nodes.ledger().state["other_bits"] == 0
    nodes.state(policy_openings=None)
    result = nodes.run(FKNN(n_neighbors=2))
    rows = int(result.metrics["rows_imputed"])
    listed = 2 * 2 + 2
    for name, whole in WHOLE.items():
        (entry,) = nodes.entries("bits", name)
        assert entry["n_rows"] == rows == 30
        assert entry["bits"] == min(np.ceil(listed * np.log2(N)), whole)
        assert entry["receiver"] == "the other parties"
        assert "group seed" in entry["colluding"]
    assert "are nearest, in order" in entry["what"]


def test_one_party_tells_nobody_else(tmp_path):
    nodes = Nodes(tmp_path, {"bank": incomplete()["bank"]})
    nodes.state(policy_openings=0, policy_min_parties=1)
    nodes.run(FKNN(n_neighbors=2))
    assert nodes.entries("bits") == []


def test_words_say_what_bounds_openings():
    said = [" ".join(in_words(Policy(openings=bits))) for bits in (None, 0.0, 3.0)]
    assert "at most as many bits as ten versions of it hold, over all runs" in said[0]
    assert "Otherwise nothing of a single row is told." in said[1]
    assert "Otherwise others are told at most 3 bits of a row." in said[2]


HIDDEN = 20


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit whose unlabelled samples were predicted, and the nodes afterwards."""
    parties = tables()
    parties["bank"] = parties["bank"].drop(index=IDS[3])
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), parties, **{"min-rows": 20})
    result = nodes.run(VFEM(), labels_of(tables(), unlabelled=HIDDEN))
    return nodes, result


def bits_by_row(nodes, name="bank"):
    """All that predictions told of each row that the ledger knows, sorted."""
    path = nodes.folder / "out" / name / f"{name}.privacy-ledger.sqlite"
    with reading(path, name) as connection:
        return np.sort(Arrays(connection, path, name).get("predictions", np.float64))


@pytest.fixture
def after(fitted, tmp_path):
    """The same nodes, each time as after the fit."""
    nodes, result = fitted
    again = Nodes(tmp_path, tables(), **{"min-rows": 20})
    for path in nodes.folder.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    again.n_runs = nodes.n_runs
    return again, result


def test_a_fit_writes_down_the_rows_that_it_predicts(fitted):
    nodes, result = fitted
    bits = result.predictor.bits["bank"]
    (entry,) = nodes.entries("predictions")
    assert (entry["n_rows"], entry["bits"]) == (HIDDEN - 1, bits)
    assert bits <= 12
    told = bits_by_row(nodes)
    assert told.tolist() == [0.0] * (N - HIDDEN) + [float(bits)] * (HIDDEN - 1)
    assert nodes.ledger().state["prediction_bits"] == bits


def test_predictions_add_up_over_runs_and_the_same_again_are_free(after):
    nodes, result = after
    bits = {name: result.predictor.bits[name] for name in ("bank", "court")}
    nodes.state(policy_predictions=2.0 * max(bits.values()))
    one = nodes.run(Predict(result), fitted="run 1", forgetful=True)
    told = nodes.ledger().state["prediction_bits"]
    assert told == 2 * bits["bank"]  # the fit's own predictions and these
    again = nodes.run(Predict(result), fitted="run 1")
    pd.testing.assert_frame_equal(one.predictions, again.predictions)
    assert nodes.ledger().state["prediction_bits"] == told
    # Of the same rows, another model tells something else.
    other = labels_of(tables(), seed=2, unlabelled=HIDDEN)
    said = nodes.refused("predictions", VFEM(), other)
    assert not list(nodes.folder.glob(f"out/*/run {nodes.n_runs}/*.model.npz"))
    assert f"of some of which {told:g} were told before" in said or "court" in said
    assert f"{2 * max(bits.values())} bits of a row over all runs" in said
    assert nodes.ledger().state["prediction_bits"] == told
    nodes.state(policy_predictions=100.0)
    nodes.run(VFEM(), other)


def test_a_model_of_a_finer_grid_than_the_owner_now_allows_is_refused(after):
    nodes, result = after
    nodes.state(policy_grid=4)
    said = nodes.refused("grid", Predict(result), fitted="run 1")
    assert "4 bits of a row in one model's prediction" in said
    coarse = nodes.run(VFEM(), labels_of(tables(), unlabelled=HIDDEN))
    assert set(coarse.predictor.bits.values()) == {4}


def test_a_corrected_row_is_told_of_anew(after):
    nodes, result = after
    nodes.state(policy_predictions=2.0 * max(result.predictor.bits.values()))
    nodes.run(Predict(result), fitted="run 1")
    changed = tables()
    changed["bank"].loc[IDS[60], "income"] += 1.0
    nodes.write(changed)
    nodes.refused("predictions", Predict(result), fitted="run 1")


PROTOCOLS = ["private-id", pytest.param(BlindRsaAligner(bits=2048), marks=pytest.mark.slow)]


def guesses(count):
    """All numbers of a small place, as in a label file of the server's own."""
    return pd.Series(np.zeros(count), index=pd.Index([f"c{i:03}" for i in range(count)]), name="y")


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["private-id", "blind-rsa"])
def test_listed_guesses_are_refused_and_honest_labels_are_not(tmp_path, protocol):
    nodes = Nodes(tmp_path, {name: table.iloc[:50] for name, table in tables().items()})
    honest = labels_of(tables()).iloc[:50]
    nodes.run(AlignOnly(), honest, alignment=protocol, forgetful=protocol == "private-id")
    # The court's 50 IDs and the server's 50; the answer that was lost counts once.
    assert sum(entry["n_rows"] for entry in nodes.entries("ids")) == 2 * 50
    count = 10 * 50 + 1
    said = nodes.refused("foreign-ids", AlignOnly(), guesses(count), alignment=protocol)
    assert "allowed: 500 in a run, for 50 rows of its own" in said
    nodes.state(policy_foreign_ids=11.1)
    nodes.run(AlignOnly(), guesses(count), alignment=protocol)
    nodes.state(policy_foreign_ids=0.5)
    nodes.refused("foreign-ids", AlignOnly(), honest, alignment=protocol)


@pytest.mark.parametrize(
    "protocol",
    ["private-id", "kkrt", pytest.param(BlindRsaAligner(bits=2048), marks=pytest.mark.slow)],
    ids=["private-id", "kkrt", "blind-rsa"],
)
def test_the_key_holder_may_list_any_number_of_guesses(tmp_path, protocol):
    """Not covered: only who evaluates or signs IDs of another counts them."""
    small = {name: table.iloc[:50] for name, table in tables().items()}
    for spy in small:
        listed = pd.DataFrame({"x": 0.0}, index=guesses(10 * 50 + 1).index)
        (tmp_path / spy).mkdir()
        nodes = Nodes(tmp_path / spy, small | {spy: listed})
        if spy == "bank" and protocol != "private-id":  # the first by name has the key
            nodes.run(AlignOnly(), alignment=protocol)
            assert nodes.entries("ids", "court") == []
        else:
            nodes.refused("foreign-ids", AlignOnly(), alignment=protocol)


def test_a_second_greeting_gives_no_further_guesses(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    nodes = Nodes(tmp_path, tables(), **{"policy.foreign-ids": 3.0})
    key = commutative.generate_blinding_key()

    def guess(federation, first):
        ids = [f"c{i:03}".encode() for i in range(first, first + N)]
        points = commutative.hash_and_blind(ids, b"nonce" * 4, key)
        asked = {"points": points, "sender": "server"}
        return federation.call("blind_for", per_party={"bank": asked}, parties=["bank"])

    undeclared = type("AlignOnly", (AlignOnly,), {"protocol": None})  # steps in any order
    with nodes.grid(undeclared()) as grid:
        guess(nodes.greet(grid, "private-id"), 0)  # beside the court's own
        second = nodes.greet(grid, "private-id")  # whose points are others, under new keys
        with pytest.raises(PartyError, match=r"policy\.foreign-ids.* 600 IDs"):
            guess(second, N)
    assert [entry["n_rows"] for entry in nodes.entries("ids")] == [N, N, N]


def test_without_a_ledger_the_bound_holds_within_the_run():
    """And small tables are aligned with larger ones."""
    parties = tables()
    with pytest.raises(PartyError, match=r"'bank' refuses by policy\.foreign-ids"):
        simulate(AlignOnly(), parties, guesses(6000), alignment="private-id")
    parties["bank"] = parties["bank"].iloc[:3]
    parties["court"] = parties["court"].iloc[:100]
    found = simulate(AlignOnly(), parties, alignment="private-id")
    assert found.metrics["samples"] == 100


def test_simulated_runs_are_runs_of_their_own_in_ledgers_that_stay(tmp_path):
    parties = tables()
    parties["bank"] = parties["bank"].iloc[:60]  # may blind 600 IDs in a run, and blinds 300
    policy = {"modules": "apps.cli.align:AlignOnly"}
    for _ in range(4):
        simulate(AlignOnly(), parties, labels_of(tables()), alignment="private-id", policy=policy,
                 ledgers=tmp_path)  # fmt: skip
    runs = LedgerSummary.of(tmp_path / "bank.privacy-ledger.sqlite").runs
    assert len(runs) == len({run["name"] for run in runs}) == 4
