"""A party takes part in an exchange that tells more only if its node config agrees."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import (
    LocalGrid,
    MemoryStorage,
    Party,
    Strategy,
    Table,
    party_app,
    simulate,
    step,
)
from flwr_vertical.errors import PartyError


class Telling(Party):
    @step
    def tell(self):
        self.check_exchange("sums")
        return {"sum": float(self.table.frame.to_numpy().sum())}


class Tell(Strategy):
    """Has every party tell."""

    name = "tell"
    party = Telling
    disclosure = (("server", "sums"),)

    def run(self, federation, alignment, result, progress):
        told = federation.call("tell")
        result.metrics = {name: values["sum"] for name, values in told.items()}


TABLES = {
    name: pd.DataFrame({"x": np.arange(3.0)}, index=["s1", "s2", "s3"]) for name in ("bank", "shop")
}


def run(exchanges):
    storage = MemoryStorage({name: Table.of(t, party=name) for name, t in TABLES.items()})
    nodes = [{"party": "bank", "exchanges": "sums"}, {"party": "shop"} | exchanges]
    with LocalGrid(party_app(Telling, storage=storage), nodes, storage=storage) as grid:
        return Tell().start(grid=grid, alignment="plain", retries=0, progress=False)


@pytest.mark.parametrize("exchanges", ["sums", " weights, sums", "any"])
def test_a_node_that_agrees_takes_part(exchanges):
    assert run({"exchanges": exchanges}).metrics == {"bank": 3.0, "shop": 3.0}


@pytest.mark.parametrize("key", ["exchanges", "policy.exchanges"])
@pytest.mark.parametrize("exchanges", ["", "weights,moments"])
def test_a_node_that_does_not_agree_refuses_and_says_how_to(key, exchanges):
    with pytest.raises(PartyError, match=r"'shop'.* exchange 'sums'.* 'exchanges'") as error:
        run({key: exchanges})
    assert "policy.exchanges: asked: exchange 'sums'" in str(error.value)
    assert f"allowed: {exchanges!r}" in str(error.value)


def test_simulate_asks_for_no_consent():
    assert simulate(Tell(), TABLES, progress=False).metrics == {"bank": 3.0, "shop": 3.0}
