"""`simulate(checkpoint=..., resume=True)`: killed anywhere and resumed, it ends with the same."""

import pathlib
import signal
import subprocess
import sys

import pandas as pd
import pytest

from flwr_vertical import Result, simulate
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.node.outputs import OutputFolder
from strategies.vfem import VFEM
from tests.faults.kills import Killer
from tests.kit.resuming import METHODS, ServerKilled

ROOT = pathlib.Path(__file__).parents[1]


def run(method, folder=None, resume=False, **settings):
    strategy, data = METHODS[method]
    tables, labels = data()
    options = {"min_rows": 10, "progress": False, "checkpoint": folder, "resume": resume} | settings
    return simulate(options.pop("strategy", None) or strategy(), tables, labels, **options)


@pytest.fixture
def killed(monkeypatch):
    """Runs a method, and ends it before or after an entry of its journal, as if by a signal."""
    killer = Killer(monkeypatch)

    def run_and_kill(when, at, method, folder, **settings):
        killer.aim(when, at)
        with pytest.raises(ServerKilled):
            run(method, folder, **settings)
        killer.aim()

    return run_and_kill


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_same(one, other):
    assert one.metrics == other.metrics
    assert one.history == other.history
    assert list(one.tables) == list(other.tables)
    for name, table in one.tables.items():
        pd.testing.assert_frame_equal(table, other.tables[name], check_exact=True)
    assert one._party_models == other._party_models
    if one.coefficients is not None:
        pd.testing.assert_frame_equal(one.coefficients, other.coefficients, check_exact=True)


@pytest.fixture(scope="module")
def unbroken():
    return {method: run(method) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_checkpoints_gives_the_same_and_leaves_nothing(method, unbroken, tmp_path):
    assert_same(run(method, tmp_path / "r"), unbroken[method])
    assert files(tmp_path) == ["r"]


def test_a_killed_process_can_be_resumed_by_another(unbroken, tmp_path):
    code = (
        "import os, signal, sys\n"
        "from flwr_vertical import LocalGrid\n"
        "from tests.test_simulate_resume import run\n"
        "original, count = LocalGrid.send_and_receive, [0]\n"
        "def send(grid, messages, *, timeout=None):\n"
        "    count[0] += 1\n"
        "    if count[0] == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return original(grid, messages, timeout=timeout)\n"
        "LocalGrid.send_and_receive = send\n"
        "run('rounds', sys.argv[1])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    for path in kept:  # private keys are among them
        assert path.stat().st_mode & 0o077 == 0, path
    assert_same(run("rounds", tmp_path, resume=True), unbroken["rounds"])


def test_what_a_run_that_was_given_up_left_is_not_the_next_one_s(killed, unbroken, tmp_path):
    stale = OutputFolder(tmp_path / "parties")
    stale.save_table("bank", pd.DataFrame({"old": [1.0]}))
    stale.save_model("bank", b"old")
    killed("before", 5, "rounds", tmp_path)
    assert_same(run("rounds", tmp_path, resume=True), unbroken["rounds"])


def test_a_damaged_output_is_refused(killed, tmp_path):
    killed("before", 18, "fknn", tmp_path)  # at the farewell
    path = tmp_path / "parties" / "bank.table.npz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"bank\.table\.npz is damaged"):
        run("fknn", tmp_path, resume=True)


def test_a_fitted_model_belongs_to_what_must_not_change(killed, tmp_path):
    from strategies.predict import Predict

    tables, labels = METHODS["rounds"][1]()
    fit = simulate(VFEM(), tables, labels, min_rows=10)
    other = simulate(VFEM("block"), tables, labels, min_rows=10)
    settings = {"strategy": Predict(fit)}
    killed("after", 3, "rounds", tmp_path, fitted=fit, **settings)
    with pytest.raises((ConfigError, PartyError), match="its data have changed"):
        run("rounds", tmp_path, resume=True, fitted=other, **settings)
    found = run("rounds", tmp_path, resume=True, fitted=fit, **settings)
    assert isinstance(found, Result)
    assert len(found.predictions) == 40


def test_actors_keep_checkpoints_too(ray_in_process, killed, unbroken, tmp_path):
    actors = {"engine": "ray", "n_actors": 2}
    killed("after", 5, "rounds", tmp_path, **actors)
    assert_same(run("rounds", tmp_path, resume=True, **actors), unbroken["rounds"])
    assert files(tmp_path) == []
