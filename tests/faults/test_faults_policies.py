"""Three real nodes with a policy each: one forbids the run, and nothing leaves any of them."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from deployments import Deployment

from apps.cli.main import main
from flwr_vertical.privacy_ledger.database import SUFFIX

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

NAMES = ("bank", "court", "hospital")
N = 300


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    home = tmp_path_factory.mktemp("policies")
    rng = np.random.default_rng(4)
    index = pd.Index([f"s{i:03}" for i in range(N)], name="id")
    for name in NAMES:
        table = pd.DataFrame(rng.normal(size=(N, 2)), index=index, columns=["a", "b"])
        if name == "bank":
            table["profit"] = table["a"] - table["b"] + rng.normal(size=N)
        table.to_csv(home / f"{name}.csv")
    (home / "hospital.toml").write_text('strategies = ["glm"]\nmin-rows = 150\n')
    policies = {  # by keys, by keys that allow nothing new, by a file of its owner's
        "bank": "policy.strategies='vfem' policy.labels='profit' policy.min-parties=3",
        "court": "policy.min-rows=120 policy.aggregations='masked'",
        "hospital": f"policy='{home / 'hospital.toml'}'",
    }
    made = Deployment(
        home,
        {
            name: f"data='{home / name}.csv' output='{home / name}-out' {policies[name]}"
            for name in NAMES
        },
    )
    yield made
    made.stop()


def run(deployment):
    """The same command each time, of the same run."""
    submitted = deployment.submit(
        strategy="vfem", parties=",".join(NAMES), label_holder="bank", label_column="profit",
        run_name="study", retries=0,
    )  # fmt: skip
    return submitted.finish(300), submitted.text


@pytest.fixture
def ledger(deployment, capsys):
    """Show a node's ledger, as its owner asks for it."""

    def shown(name):
        assert main(["privacy-ledger", str(deployment.flower.home / f"{name}-out"), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        return found

    return shown


def kinds(found):
    return {entry["kind"] for entry in found["entries"]}


def test_a_run_that_one_of_three_forbids_and_its_owner_then_allows(deployment, ledger):
    home = deployment.flower.home
    code, said = run(deployment)
    assert code == 1
    assert re.search(
        r"party 'hospital'.* refuses by policy\.strategies: asked: strategy 'vfem'; "
        r"allowed: 'glm'",
        said,
    ), said[-3000:]
    # Nothing is there but ledgers, in which nothing has left.
    files = [p for name in NAMES for p in (home / f"{name}-out").rglob("*") if p.is_file()]
    assert {path.name.removeprefix(path.name.split(".")[0]) for path in files} <= {SUFFIX}
    for path in files:
        found = ledger(path.name.split(".")[0])
        assert kinds(found) <= {"refused"}
        assert found["state"]["rows_told_of"] == 0
    assert kinds(ledger("hospital")) == {"refused"}
    assert not list((deployment.flower.results / "server").rglob("result.json"))

    policy = home / "hospital.toml"
    policy.write_text(policy.read_text().replace('["glm"]', '["glm", "vfem"]'))
    code, said = run(deployment)
    assert code == 0, said[-3000:]
    assert (deployment.folder("study") / "coefficients.csv").is_file()
    for name in NAMES:
        found = ledger(name)
        assert {"rows"} <= kinds(found), found["entries"]
        assert found["state"]["rows_told_of"] == N
        assert found["state"]["smallest_set"] == N
        assert [r["strategy"] for r in found["runs"]][-1] == "vfem"
        assert found["runs"][-1]["name"] == "study"
