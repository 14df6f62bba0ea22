"""A server that sends other messages than the strategy does, at every place of a run."""

import logging

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Party, Strategy, Summands, step
from flwr_vertical.errors import PartyError
from flwr_vertical.node import service
from flwr_vertical.protocol.declaration import FACTS, Protocol, Repeat, Round
from simulations.attacks.deviating import ANSWERED, OTHERWISE, OUTCOMES, RAW, deviate
from simulations.attacks.mutations import ALONE, ARGUMENT, EARLIER, NUMBER, STATE, STEP, VALUE
from strategies.vfem import VFEM
from tests.kit import cases
from tests.kit.ledgered import Nodes
from tests.strategies.test_vfem_scoring import make

# Arguments that an honest server may leave out as well.
OPTIONAL = {"commitment", "missing", "labels", "donors", "labels_attempt", "columns_of"} | {
    "n_listed",
    "planned",
    "split",
    "shown",
    "weights",
    "sketched",
    "room",
}


@pytest.mark.parametrize("case", ["mean", "fknn", "vfem"])
def test_other_messages_are_refused_at_every_place_of_a_run(case):
    made = cases.made(case), cases.tables_of(case), cases.labels_of(case)
    refuses(deviate(*made, seed=1, min_rows=1))


@pytest.mark.slow
def test_other_messages_are_refused_where_rows_are_completed():
    tables, labels, *_ = make(900, 3, 1, seed=4)
    held = labels.index[np.any([labels.index.isin(t.index) for t in tables.values()], axis=0)]
    tries = deviate(VFEM(), tables, labels[held], seed=1)
    assert {one.step for one in tries.made} >= {"open_completed", "finish_moments"}
    refuses(tries)


def refuses(tries):
    count = tries.count()
    print(f"{len(tries.made)} tries\n{count.to_string()}")
    assert len(tries.made) > 50
    assert set(tries.count().columns[:5]) == set(OUTCOMES)
    assert count["cells found"].sum() == 0
    # A step that is not next, and a key of the state, never come as far as the strategy's code.
    assert tries.of(STEP, ANSWERED, OTHERWISE, RAW) == []
    assert tries.of(STATE, ANSWERED, OTHERWISE, RAW) == []
    assert tries.of(ARGUMENT, RAW) == []
    # Two messages are never masked alike, whatever one party is told: their difference stays noise.
    assert tries.masked_alike == []
    assert tries.of(NUMBER, ANSWERED, RAW) == []
    assert tries.of(EARLIER, RAW) == []
    assert tries.of(ALONE, RAW) == []
    answered = {one.what.partition(" missing")[0] for one in tries.of(ARGUMENT, ANSWERED)}
    assert answered <= OPTIONAL
    assert count.loc[VALUE].sum() > 0


def test_a_node_without_a_protocol_answers_what_the_others_refuse(monkeypatch):
    """What tries this could fail."""
    strategy = type(cases.made("mean"))
    monkeypatch.setattr(strategy, "protocol", None)
    tries = deviate(strategy(), cases.tables_of("mean"), min_rows=1, seed=1)
    assert tries.of(STATE, ANSWERED)


def test_masks_that_are_not_bound_to_the_message_are_seen(monkeypatch):
    """What looks for two messages that are masked alike could find them."""
    monkeypatch.setattr(service, "binding_of", lambda *_: b"")
    tries = deviate(
        cases.made("vfem"), cases.tables_of("vfem"), cases.labels_of("vfem"), min_rows=1, seed=1
    )
    assert tries.masked_alike


class ReachParty(Party):
    @step
    def reach(self):
        return Summands({"reach": np.abs(self.table.frame.to_numpy()).max(axis=0)})


class Reach(Strategy):
    """A sum that fails where a column reaches farther than the server's scale."""

    name = "reach"
    party = ReachParty
    protocol = Protocol(Repeat(Round("reach", "how far columns reach", tells=FACTS), at_most=40))
    disclosure = (("server", "how far columns reach"),)

    def run(self, federation, alignment, result, progress):
        federation.sum("reach", scale={"reach": 1e-6})


def test_a_step_that_fails_is_the_last_of_its_run(tmp_path, monkeypatch):
    """Else each scale that the server tries would tell whether numbers exceed it."""
    monkeypatch.setattr(logging.getLogger("flwr_vertical"), "disabled", True)
    ids = [f"i{k}" for k in range(40)]
    x = np.random.default_rng(0).normal(size=40)
    nodes = Nodes(tmp_path, {name: pd.DataFrame({"x": x}, index=ids) for name in ("bank", "court")})
    with nodes.grid(Reach()) as grid:
        federation = nodes.greet(grid)
        with pytest.raises(PartyError, match="FixedPointOverflowError"):
            federation.sum("reach", scale={"reach": 1e-6})
        with pytest.raises(PartyError, match="it refused an earlier message of this run"):
            federation.sum("reach", scale={"reach": 8.0})
    said = [entry["what"] for entry in nodes.entries("refused")]
    assert said[0] == "step 'reach': it failed: FixedPointOverflowError"
