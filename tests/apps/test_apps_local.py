"""`flwr-vertical run` on this machine: what it says before Flower starts, and the SuperLink."""

import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tomllib

import pandas as pd
import pytest
from runtimes import IN_MEMORY, free_port

from apps.cli import local_superlink, main
from apps.cli import run as run_command
from flwr_vertical import Result
from flwr_vertical.errors import VerticalError

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = sys.executable
VARIABLE = local_superlink.NO_INSTALLATION


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of Flower and of results, in which nothing may start."""
    (tmp_path / "config.toml").write_text(IN_MEMORY)
    port = str(free_port())
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path / "results"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(local_superlink, "_port", lambda: port)
    monkeypatch.setattr(run_command, "_flwr", lambda: pytest.fail("Flower was started"))
    return tmp_path


@pytest.fixture
def superlink(home):
    """Start what looks like a SuperLink at the local port, in an environment of its own."""
    started = []

    def start(**environment):
        program = home / "other" / "bin" / "flower-superlink"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!{PYTHON}\nimport time\ntime.sleep(120)\n")
        program.chmod(0o755)
        words = [str(program), "--host", "127.0.0.1", "--port", local_superlink._port()]
        started.append(subprocess.Popen(words, env={**os.environ, **environment}))
        return started[-1], program

    yield start
    for process in started:
        process.kill()
        process.wait()


def refused(capsys, *arguments, app=ROOT):
    """Return the one line that a run ends with before anything starts."""
    assert main.main(["run", str(app), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_superlink_of_another_environment_is_named(superlink, capsys):
    process, program = superlink()
    said = refused(capsys)
    assert f"(process {process.pid}, {program}) belongs to another environment" in said
    assert "'flwr-vertical stop'" in said
    assert "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT" in said


def test_a_superlink_keeps_the_variables_of_its_start(superlink, capsys, monkeypatch):
    _, program = superlink(FLWR_VERTICAL_HOME="/elsewhere")
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    said = refused(capsys)
    assert f"{VARIABLE}='' and keeps it; this run has '1'" in said
    monkeypatch.setenv(VARIABLE, "0")
    assert f"{VARIABLE}='' and keeps it; this run has '0'" in refused(capsys)
    main.main(["stop"])
    superlink(**{VARIABLE: "0"}, FLWR_VERTICAL_HOME="/elsewhere")
    assert "FLWR_VERTICAL_HOME='/elsewhere' and keeps it" in refused(capsys)
    main.main(["stop"])
    superlink(**{VARIABLE: "0"})
    local_superlink.check_simulation()  # it is as this command would start one


def test_flower_is_told_to_use_what_is_installed(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert local_superlink.run_environment()[VARIABLE] == "1"
    monkeypatch.setenv(VARIABLE, "0")
    assert local_superlink.run_environment()[VARIABLE] == "0"


def test_stop_ends_the_local_superlink_alone(superlink, capsys):
    process, program = superlink()
    elsewhere = subprocess.Popen([str(program), "--port", "1"])
    try:
        assert main.main(["stop"]) == 0
        assert f"(process {process.pid}, {program})" in capsys.readouterr().out
        assert process.poll() is not None
        assert elsewhere.poll() is None
        assert main.main(["stop"]) == 0
        assert "no local SuperLink runs at 127.0.0.1:" in capsys.readouterr().out
    finally:
        elsewhere.kill()
        elsewhere.wait()


def test_without_ray_the_extra_is_named_at_once(home, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "ray" else find(name)
    )
    said = refused(capsys)
    assert "a simulation needs 'ray', not installed here" in said
    assert "pip install 'flwr-vertical[simulation]'" in said


def test_what_the_server_would_refuse_is_refused_before_it_starts(home, capsys):
    labels = home / "labels.csv"
    items = ["--run-config", f'strategy="vfem" labels="{labels}"']
    assert f"{labels} does not exist" in refused(capsys, *items)
    pd.DataFrame({"id": ["a"], "y": [1.0], "z": [2.0]}).to_csv(labels, index=False)
    assert "say which one holds the labels: y, z" in refused(capsys, *items)
    Result("fknn").save(home / "results" / "server" / "first")
    said = refused(capsys, "--run-config", 'run-name="first"')
    assert "holds the result of an earlier run of this name" in said
    said = refused(
        capsys,
        "--run-config", 'strategy="gbdt" labels="demo" parties="bank,court"',
        "--federation-config", "num-supernodes=2",
    )  # fmt: skip
    assert "the run waits for 3 nodes" in said


def started(monkeypatch, *arguments):
    """Return what `flwr run` would be given: settings, and options of the simulation."""
    found = []

    def stream(app, superlink, items, federation_config):
        text = pathlib.Path(items[1]).read_text() if items else ""
        found.append((tomllib.loads(text), federation_config))
        return 0

    monkeypatch.setattr(run_command, "_stream", stream)
    assert main.main(["run", str(ROOT), *arguments]) == 0
    return found[0]


def test_a_simulation_has_a_node_for_each_party_and_the_arbiter(home, monkeypatch):
    gbdt = 'strategy="gbdt" labels="demo" parties="bank,court"'
    assert started(monkeypatch, "--run-config", gbdt)[1] == ["num-supernodes=3"]
    fknn = 'parties="bank,court,hospital"'
    assert started(monkeypatch, "--run-config", fknn)[1] == ["num-supernodes=3"]
    assert started(monkeypatch)[1] == []
    more = ["--run-config", fknn, "--federation-config", "num-supernodes=4"]
    assert started(monkeypatch, *more)[1] == ["num-supernodes=4"]


def test_paths_of_the_server_are_those_of_this_folder(home, monkeypatch):
    pd.DataFrame({"id": ["a"], "y": [1.0]}).to_csv(home / "labels.csv", index=False)
    monkeypatch.chdir(home)
    items = 'strategy="vfem" labels="labels.csv" test-labels="demo"'
    settings, _ = started(monkeypatch, "--run-config", items)
    assert settings["labels"] == str(home / "labels.csv")
    assert settings["test-labels"] == "demo"


def test_a_run_whose_log_closes_early_is_waited_for(monkeypatch):
    clock = itertools.count(0.0, 100.0)  # seconds
    statuses = iter(["running"] * 5 + ["finished:completed"])

    def ask(command, **_):
        found = {"runs": [{"status": next(statuses), "status-details": ""}]}
        return subprocess.CompletedProcess(command, 0, json.dumps(found), "")

    monkeypatch.setattr(run_command.subprocess, "run", ask)
    monkeypatch.setattr(run_command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(run_command.time, "sleep", lambda _: None)
    assert run_command._wait("flwr", "1", [])["status"] == "finished:completed"


def test_a_superlink_that_answers_nothing_is_given_up(monkeypatch):
    clock = itertools.count(0.0, 100.0)
    gone = subprocess.CompletedProcess([], 1, "", "no SuperLink")
    monkeypatch.setattr(run_command.subprocess, "run", lambda *_, **__: gone)
    monkeypatch.setattr(run_command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(run_command.time, "sleep", lambda _: None)
    with pytest.raises(VerticalError, match=r"cannot learn how run 1 ended.*no SuperLink"):
        run_command._wait("flwr", "1", [])
