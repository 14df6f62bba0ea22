"""Four parties on a real deployment, each with another kind of data: the numbers of CSV."""

import pandas as pd
import pytest
from databases import PASSWORD, fill_all, four_tables, running_postgres
from deployments import Deployment

from flwr_vertical import simulate
from flwr_vertical.sources import read_source
from strategies.fknn import FKNN

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tables():
    return four_tables(80, 9)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, tables):
    home = tmp_path_factory.mktemp("databases")
    with running_postgres() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("READER_PASSWORD", PASSWORD)
        fill_all(home, tables, server)
        written = f"output='{server.url}' output-table='bank_{{run}}'"
        parties = {
            # The password comes from the environment of the SuperNodes.
            "bank": f"data='{server.url}' query='SELECT * FROM bank' {written}",
            "court": f"data='duckdb:///{home / 'court.duckdb'}' table='court'",
            "shop": f"data='{home / 'shop.sqlite'}' table='shop'",
            "tax": f"data='{home / 'tax'}'",
        }
        agreed = "policy.alignments='plain'"
        nodes = Deployment(home, {name: f"{keys} {agreed}" for name, keys in parties.items()})
        nodes.database = server
        yield nodes
        nodes.stop()


def test_four_sources_at_once_give_the_numbers_of_csv(deployment, tables):
    run = deployment.submit(
        strategy="fknn", parties="bank,court,shop,tax", min_nodes=4, alignment="plain",
        run_name="first", channel_timeout=110.0,  # on a busy machine
    )  # fmt: skip
    assert run.finish(600) == 0, run.text[-3000:]
    from_csv = {}
    for name, frame in tables.items():
        path = deployment.flower.home / f"{name}.csv"
        frame.to_csv(path)
        from_csv[name] = read_source(path)
    expected = simulate(FKNN(), from_csv).tables
    for name in tables:
        path = deployment.flower.results / "parties" / "first" / f"{name}.parquet"
        found = pd.read_parquet(path)
        pd.testing.assert_frame_equal(
            found, expected[name].loc[found.index], rtol=1e-12, atol=1e-12, check_names=False
        )
        assert len(found) == len(expected[name])
    bank = read_source(deployment.database.url, table="bank_first").frame
    pd.testing.assert_frame_equal(
        bank, expected["bank"].loc[bank.index], rtol=1e-12, atol=1e-12, check_names=False
    )
    logs = "".join(path.read_text() for path in deployment.flower.home.glob("*.log"))
    copies = deployment.flower.results / "parties" / ".sources"
    assert sorted(path.parent.name for path in copies.rglob("*.parquet")) == [
        "bank",
        "court",
        "shop",
    ]
    assert PASSWORD not in logs
