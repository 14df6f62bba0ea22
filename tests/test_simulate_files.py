"""`simulate_files`: the files of nodes, read as nodes read them, run in this process."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import simulate, simulate_files
from flwr_vertical.errors import ConfigError, DataError, VerticalError
from strategies.fknn import FKNN
from strategies.vfem import VFEM

N = 150


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A folder of node configs; paths in them are taken from the current folder."""
    rng = np.random.default_rng(0)
    ids = [f"{k:04d}" for k in range(N)]
    bank = pd.DataFrame({"income": rng.normal(size=N).round(3), "same": 1}, ids)
    bank["late"] = np.where(bank["income"] + rng.normal(size=N) > 0, "yes", "no")
    bank.loc[bank.index[::7], "income"] = -999
    court = pd.DataFrame({"debts": rng.normal(size=N).round(3)}, [f" {k} " for k in range(N)])
    bank.to_csv(tmp_path / "bank.csv", sep=";", index_label="id")
    court.to_csv(tmp_path / "court.csv", index_label="id")
    folder = tmp_path / "nodes"
    (folder / "bank").mkdir(parents=True)
    (folder / "bank" / "node.toml").write_text(
        "party = 'bank'\ndata = 'bank.csv'\ndrop-columns = 'same'\nnormalise-ids = 'unpad'\n"
        "csv.missing = -999\npolicy = 'policy.toml'\n"
    )
    (tmp_path / "policy.toml").write_text(
        "labels = 'late'\nmin-rows = 10\nalignments = 'plain,private-id'\n"
    )
    (folder / "court.toml").write_text(
        "party = 'court'\ndata = 'court.csv'\nnormalise-ids = 'strip'\n"
        "policy.min-rows = 10\npolicy.alignments = 'plain,private-id'\n"
    )
    monkeypatch.chdir(tmp_path)
    return folder


def tables(folder):
    """The same tables, made by hand."""
    bank = pd.read_csv(folder.parent / "bank.csv", sep=";", index_col="id")[["income", "late"]]
    court = pd.read_csv(folder.parent / "court.csv", dtype={"id": str}).set_index("id")
    court.index = court.index.str.strip().astype(int)
    return {"bank": bank.replace(-999, np.nan), "court": court}


def test_tables_are_those_of_the_node_configs(nodes):
    found = simulate_files(FKNN(), nodes, alignment="plain")
    expected = simulate(FKNN(), tables(nodes), min_rows=10)
    for name, table in expected.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], table, check_names=False)
    assert not found.tables["bank"].isna().to_numpy().any()


def test_labels_at_their_holder_equal_those_of_the_server(nodes, tmp_path):
    strategy = VFEM()
    labels = {"label_holder": "bank", "label_column": "late", "positive_label": "yes"}
    # A mapping of files or keys is the same as a folder.
    by_name = {"bank": nodes / "bank" / "node.toml", "court": {"data": "court.csv"}}
    by_name["court"] |= {"normalise-ids": "strip", "policy.min-rows": 10}
    held = simulate_files(strategy, by_name, **labels)
    assert held.needed_keys["bank"]["policy.labels"] == "late"
    assert "late" not in held.originals["bank"]
    parts = tables(nodes)
    late = parts["bank"].pop("late")
    served = simulate(strategy, parts, late, min_rows=10, positive_label="yes")
    # Classes may be numbers, and 0 or False the one that counts.
    for no in (0, False):
        codes = (late != "yes").astype(type(no))
        coded = simulate(strategy, parts, codes, min_rows=10, positive_label=no)
        pd.testing.assert_frame_equal(coded.coefficients, served.coefficients)
    left, right = held.coefficients["estimate"], served.coefficients["estimate"]
    np.testing.assert_allclose(left, right, atol=1e-6)
    late.to_csv(tmp_path / "late.csv", index_label="id")
    (nodes / "bank" / "node.toml").write_text(
        (nodes / "bank" / "node.toml").read_text().replace("'same'", "'same, late'")
    )
    read = simulate_files(strategy, nodes, tmp_path / "late.csv", positive_label="yes")
    np.testing.assert_allclose(read.coefficients["estimate"], right, atol=1e-6)


def test_consents_of_the_node_configs_hold(nodes):
    labels = {"label_holder": "bank", "label_column": "late", "positive_label": "yes"}
    (nodes.parent / "policy.toml").write_text("labels = ''\n")
    with pytest.raises(VerticalError, match=r"policy\.labels"):
        simulate_files(VFEM(), nodes, **labels)


def test_a_party_tells_the_server_no_class(nodes, caplog):
    labels = {"label_holder": "bank", "label_column": "late", "positive_label": "Yes"}
    with pytest.raises(VerticalError, match=r"which have 2 classes \(its own log") as caught:
        simulate_files(VFEM(), nodes, **labels)
    assert "'yes'" not in str(caught.value)
    assert "have the classes 'no', 'yes'" in caplog.text


def test_what_cannot_be_used(nodes):
    with pytest.raises(ConfigError, match=r"\['policy'\] are stated in the node configs"):
        simulate_files(FKNN(), nodes, policy={})
    with pytest.raises(ConfigError, match="the only node config is of an arbiter"):
        simulate_files(FKNN(), {"arbiter": {}})
    with pytest.raises(ConfigError, match="the node config of 'bank' is of 'shop'"):
        simulate_files(FKNN(), {"bank": {"party": "shop", "data": "bank.csv"}})
    with pytest.raises(DataError, match=r"nothing\.csv does not exist"):
        simulate_files(FKNN(), {"bank": {"data": "nothing.csv"}})
    with pytest.raises(ConfigError, match=r"TOML: .*; a table is stated as {'data': 'bank.csv'}"):
        simulate_files(FKNN(), {"bank": "bank.csv"})
    shares = {"bank": {"data": "bank.csv", "hold-out": 0.1}, "court": {"data": "court.csv"}}
    with pytest.raises(ConfigError, match=r"hold-out = \[0.0, 0.1\]"):
        simulate_files(FKNN(), shares)
    with pytest.raises(ConfigError, match="must be one of the parties"):
        simulate(FKNN(), tables(nodes), label_holder="shop")
    with pytest.raises(ConfigError, match=r"labels are in late\.csv or at 'bank'; state one"):
        simulate_files(FKNN(), nodes, "late.csv", label_holder="bank", label_column="late")
    with pytest.raises(ConfigError, match="label_column='late': state both or none"):
        simulate_files(FKNN(), nodes, label_column="late")
    with pytest.raises(ConfigError, match="label_holder='bank' and label_column='': state both"):
        simulate_files(FKNN(), nodes, label_holder="bank")
