"""`flwr run .` on Flower's own runtimes, against the same run in process."""

import json
import time

import numpy as np
import pandas as pd
import pytest
from runtimes import free_port

from flwr_vertical import simulate
from flwr_vertical.demo import demo_tables
from strategies.fknn import FKNN

pytestmark = [pytest.mark.flower, pytest.mark.timeout(400)]


def same(left, right):
    """Equal to the last bit, whatever pandas calls the dtype of text."""
    pd.testing.assert_index_equal(left.index, right.index, check_names=False, exact=False)
    assert list(left.columns) == list(right.columns)
    np.testing.assert_array_equal(left.to_numpy(), right.to_numpy())


def test_simulation_runtime_equals_simulate(flower):
    answer = flower.run("run", ".", "--run-config", 'alignment="plain"')
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    (report,) = (flower.results / "server").glob("run-*/report.html")
    assert str(report) in answer.stdout

    incomplete, _ = demo_tables()
    expected = simulate(FKNN(standardize=True), incomplete, progress=False)
    folder = flower.results / "parties" / report.parent.name
    for name, table in expected.tables.items():
        assert not table.isna().to_numpy().any()
        same(pd.read_parquet(folder / f"{name}.parquet"), table)
        assert "Imputed against true values" in (folder / f"{name}.html").read_text()
    # No party's table is on the server.
    assert not list((flower.results / "server").rglob("*.parquet"))


def test_a_strategy_of_somebody_else_runs_with_its_settings(flower):
    """A package of its own, found where Flower's processes find packages, and no file of ours."""
    settings = 'strategy="known-cells" known-cells.scale=2.5 labels="demo" run-name="others"'
    answer = flower.run("run", ".", "--run-config", settings)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    saved = flower.results / "server" / "others" / "result.json"
    found = json.loads(saved.read_text())
    incomplete, _ = demo_tables()
    known = sum(table.notna().to_numpy().sum() for table in incomplete.values())
    assert found["metrics"]["cells"] == pytest.approx(2.5 * known)
    assert found["settings"]["scale"] == 2.5


def test_deployment_runtime_with_own_files(flower, tmp_path):
    incomplete, _ = demo_tables(missing_blocks=0.1)
    port = free_port()
    flower.start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    for name, table in incomplete.items():
        table.to_csv(tmp_path / f"{name}.csv")
        config = (
            f"party='{name}' data='{tmp_path / name}.csv' id-column='id' "
            f"output='{tmp_path / name}-out'"
        )
        flower.start(
            "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
            "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip
    settings = flower.home / "config.toml"
    settings.write_text(
        settings.read_text()
        + f'\n[superlink.trial]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    _wait_for(port)
    answer = flower.run(
        "run", ".", "trial", "--run-config", 'run-name="own"',
        "--run-config", 'parties="clinic,laboratory"', timeout=350,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]

    expected = simulate(FKNN(standardize=True), incomplete, progress=False)
    for name, table in expected.tables.items():
        written = pd.read_parquet(tmp_path / f"{name}-out" / "own" / f"{name}.parquet")
        own = len(incomplete[name])
        same(written.iloc[:own], table.iloc[:own])
        # Samples the party lacks have no names in a private alignment; their values are the same.
        assert all(str(row).startswith("aligned-") for row in written.index[own:])
        key = list(table.columns)
        left, right = (t.iloc[own:].sort_values(key).to_numpy() for t in (written, table))
        np.testing.assert_allclose(left, right, rtol=1e-12)

    # A run that fails exits with 1, and says why.
    answer = flower.run(
        "run", ".", "trial", "--run-config", 'run-name="fails" fknn.n-neighbors=100000',
        "--run-config", 'parties="clinic,laboratory"', timeout=350,
    )  # fmt: skip
    assert answer.returncode == 1
    assert "n_neighbors = 100000" in answer.stderr, answer.stdout[-6000:] + answer.stderr


def _wait_for(port):
    import urllib.request

    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return
