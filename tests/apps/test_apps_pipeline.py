"""Pipelines on nodes: one alignment, and the same numbers after a kill."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from deployments import Deployment, wait_until

from flwr_vertical.server.journal import FILE_NAME
from strategies.pipeline import Pipeline, PipelineResult

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]

NAMES = ("bank", "court", "shop")
STAGES = [
    {"name": "impute", "strategy": "joint-normal"},
    {"name": "select", "strategy": "glm", "penalty": "lasso"},
    {"name": "fit", "strategy": "glm", "penalty": "none"},
    {"name": "evaluate", "hold-out": 0.2},
    {"name": "predict"},
]
# Runs on the same rows again and again: what adds up is looked at in tests/strategies.
OPEN = "policy.alignments='plain' policy.min-rows=1 policy.vectors=999 policy.predictions=9999"


def make_data():
    rng = np.random.default_rng(4)
    ids = pd.Index([f"s{i:04}" for i in range(1500)], name="id")
    tables = {
        name: pd.DataFrame(rng.normal(size=(1500, 3)), index=ids, columns=[f"{name[0]}{j}" for j in
                           range(3)])
        for name in NAMES
    }  # fmt: skip
    noise = rng.normal(size=1500)
    labels = (1 + tables["bank"]["b0"] - 2 * tables["court"]["c1"] + noise).rename("y")
    tables["bank"] = tables["bank"].mask(rng.random((1500, 3)) < 0.15)
    return tables, labels


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    home = tmp_path_factory.mktemp("pipelines")
    tables, labels = make_data()
    labels.to_csv(home / "labels.csv")
    for name, table in tables.items():
        table.to_parquet(home / f"{name}.parquet")
    nodes = {n: f"data='{home / n}.parquet' output='{home / n}-out' {OPEN}" for n in NAMES}
    made = Deployment(home, nodes)
    yield made
    made.stop()


def start(deployment, run_name, transport="channel"):
    """Start a pipeline, or go on with it: the command is the same."""
    path = deployment.flower.home / f"{run_name}.toml"
    lines = [
        f'labels = "{deployment.flower.home / "labels.csv"}"',
        f'parties = "{",".join(NAMES)}"',
    ]
    lines += ['alignment = "plain"', f'transport = "{transport}"']
    for stage in STAGES:
        lines.append("[[stages]]")
        lines += [f"{k} = {v!r}" for k, v in stage.items()]
    path.write_text("\n".join(lines))
    return deployment.start_run("pipeline", str(path), ".", "trial")


def result_of(deployment, run_name):
    return PipelineResult.load(deployment.folder(run_name))


def assert_same(found, expected):
    """Compare; `python -m tests.faults.kills` does so to the bit, with the same keys."""
    assert list(found.stages) == [stage["name"] for stage in STAGES]
    for name, stage in found.stages.items():
        other = expected.stages[name]
        # Products round by keys, which are new in each run, and terms of predictions go by a grid.
        for what, near in (("coefficients", 1e-6), ("predictions", 0.1)):
            mine, theirs = getattr(stage, what), getattr(other, what)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert list(mine.index) == list(theirs.index)
                np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=near)
    assert found.metrics["test_rmse"] == pytest.approx(expected.metrics["test_rmse"], rel=1e-3)


@pytest.fixture(scope="module")
def expected():
    tables, labels = make_data()
    options = {"alignment": "plain", "min_rows": 1, "progress": False}
    return Pipeline(STAGES).simulate(tables, labels, **options)


def test_five_stages_align_once(deployment, expected):
    run = start(deployment, "whole")
    assert run.finish(300) == 0, run.text[-3000:]
    found = result_of(deployment, "whole")
    assert_same(found, expected)
    steps = found.ledger.to_frame().drop_duplicates("round")["step"]
    assert (steps == "hello").sum() == 1
    assert (steps == "share_ids").sum() == 1

    page = (deployment.folder("whole") / "report.html").read_text()
    for name in expected.stages:
        assert f"{name}: Metrics" in page
    # Tables and parts of models are the parties' own.
    home = deployment.flower.home
    for name in NAMES:
        assert (home / f"{name}-out" / "whole" / f"{name}.impute.parquet").exists()
    assert not list(deployment.folder("whole").rglob("*impute.parquet"))


def test_killed_on_the_way_the_same_command_goes_on_there(deployment, expected):
    """tests/test_simulate_kills.py kills in each stage. By Flower's messages a round is slow."""
    journal = deployment.folder("killed") / FILE_NAME

    def begun(stage):
        return journal.exists() and f'"step":"{stage}.'.encode() in journal.read_bytes()

    run = start(deployment, "killed", transport="messages")
    wait_until(lambda: begun("select") or run.process.poll() is not None, 600, "the second stage")
    for pid in deployment.apps("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    run.process.kill()
    run.process.wait()
    assert begun("select"), run.text[-3000:]
    assert not begun("fit")
    run = start(deployment, "killed")
    assert run.finish(300) == 0, run.text[-3000:]
    assert "going on with the run that broke off" in run.text
    assert_same(result_of(deployment, "killed"), expected)
