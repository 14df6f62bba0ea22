"""`flwr run .` on Flower's Simulation Runtime, against the same run in process.

The run over channels is a run of CI's (marker `deployment`), since it waits for half a minute.
tests/apps/test_apps_deploy.py has the Deployment Runtime, tests/faults what breaks on it.
"""

import numpy as np
import pandas as pd
import pytest
from runtimes import IN_MEMORY, Flower, processes_of, stop_all, watching

from flwr_vertical import simulate
from flwr_vertical.incomplete.demo import demo_tables
from strategies.fknn import FKNN

pytestmark = [pytest.mark.flower, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    home = tmp_path_factory.mktemp("flower")
    (home / "config.toml").write_text(IN_MEMORY)
    found = Flower(home)
    del found.env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]  # which the command sets
    yield found
    stop_all(home)


def same(left, right):
    """Equal to the last bit, whatever pandas calls the dtype of text."""
    pd.testing.assert_index_equal(left.index, right.index, check_names=False, exact=False)
    assert list(left.columns) == list(right.columns)
    np.testing.assert_array_equal(left.to_numpy(), right.to_numpy())


def test_simulation_runtime_equals_simulate(flower):
    with watching(flower.results / "server") as seen:
        answer = flower.run("run", ".", "--run-config", 'alignment="plain" live-page=true')
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    (report,) = (flower.results / "server").glob("run-*/report.html")
    assert str(report) in answer.stdout

    incomplete, _ = demo_tables()
    expected = simulate(FKNN(standardize=True), incomplete)
    folder = flower.results / "parties" / report.parent.name
    for name, table in expected.tables.items():
        assert not table.isna().to_numpy().any()
        same(pd.read_parquet(folder / f"{name}.parquet"), table)
        assert "Imputed against true values" in (folder / f"{name}.html").read_text()
    # No party's table is on the server.
    assert not list((flower.results / "server").rglob("*.parquet"))
    # The command starts a run anew if Ray did not start, as on a busy machine.
    seen = [status for status in seen if status["run"] == report.parent.name]
    running = [status for status in seen if status["state"] == "running"]
    assert [node["name"] for node in running[-1]["nodes"]][:-1] == list(incomplete)


def test_stop_ends_the_superlink_and_all_that_it_started(flower):
    answer = flower.run("stop")
    assert (answer.returncode, answer.stdout[:26]) == (0, "ended the local SuperLink ")
    assert processes_of(flower.home) == []


@pytest.mark.deployment
def test_a_new_app_runs_as_printed_with_the_parties_that_it_was_asked_for(flower, tmp_path):
    made = flower.run("new", str(tmp_path / "credit"), "--parties", "bank,court,hospital")
    assert made.stdout.endswith("next: cd credit && flwr-vertical run .\n")
    answer = flower.run("run", ".", "--run-config", 'run-name="new"', cwd=tmp_path / "credit")
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    written = (flower.results / "parties" / "new").glob("*.parquet")
    assert sorted(path.stem for path in written) == ["bank", "court", "hospital"]


@pytest.mark.deployment
def test_simulation_runtime_over_channels_gives_the_same_numbers(flower):
    answer = flower.run(
        "run", ".",
        "--federation-config", "num-supernodes=3 client-resources-num-cpus=1",
        "--run-config", 'alignment="plain" run-name="channels" transport="channel"',
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-2000:]
    assert "3 channels are open" in answer.stdout
    incomplete, _ = demo_tables(n_parties=3)
    expected = simulate(FKNN(standardize=True), incomplete)
    for name, table in expected.tables.items():
        written = pd.read_parquet(flower.results / "parties" / "channels" / f"{name}.parquet")
        pd.testing.assert_frame_equal(
            written, table, rtol=1e-12, atol=1e-12, check_names=False, check_index_type=False
        )
