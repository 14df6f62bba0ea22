"""What breaks on real nodes: every run ends with the unbroken run's numbers, or names the cause."""

import json
import os
import re
import signal
import time

import numpy as np
import pandas as pd
import pytest
from deployments import Deployment, make_data, wait_until
from proxies import Proxy
from runtimes import free_port

from apps.cli.main import main
from flwr_vertical import simulate
from flwr_vertical.privacy_ledger.database import SUFFIX
from strategies.vfem import VFEM
from tests.kit.rounds import Rounds

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

NAMES = ("bank", "court", "hospital")
ROUNDS = 400


@pytest.fixture(scope="module")
def unbroken():
    parties, labels = make_data(NAMES, 240)
    return simulate(Rounds(max_iter=ROUNDS), parties, labels, alignment="plain")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    home = tmp_path_factory.mktemp("faults")
    parties, labels = make_data(NAMES, 240)
    labels.to_csv(home / "labels.csv")
    for name, table in parties.items():
        table.to_parquet(home / f"{name}.parquet")
    allow(home, "glm", "rounds", "vfem")
    policies = {  # by keys, by keys that allow nothing new, by a file of its owner's
        "bank": "policy.strategies='rounds,vfem' policy.min-parties=3 policy.alignments='plain' "
        "exchanges='sums' min-rows=20",
        "court": "policy.min-rows=20 policy.aggregations='masked' policy.alignments='plain' "
        "exchanges='sums'",
        "hospital": f"policy='{home / 'hospital.toml'}'",
    }
    made = Deployment(
        home,
        {
            name: f"data='{home / name}.parquet' output='{home / name}-out' {policy}"
            for name, policy in policies.items()
        },
        supernode=("flower-supernode",),  # its ClientApps are processes, to be killed
    )
    yield made
    made.stop()


def allow(home, *strategies):
    """Write the policy of the hospital."""
    text = f'strategies = {json.dumps(strategies)}\nmin-rows = 20\nalignments = ["plain"]\n'
    (home / "hospital.toml").write_text(text + 'exchanges = ["sums"]\n')


def submit(deployment, run_name, strategy="rounds", **config):
    settings = {"strategy": strategy, "parties": ",".join(NAMES), "alignment": "plain",
                "labels": str(deployment.flower.home / "labels.csv")}  # fmt: skip
    if strategy == "rounds":
        gate = str(deployment.flower.home / "gate")
        settings |= {"transport": "channel", "rounds.max-iter": ROUNDS, "rounds.gate": gate}
    return deployment.submit(run_name=run_name, **(settings | config))


def open_gate(deployment, rounds=ROUNDS):
    """Let runs take so many rounds: none ends before it is broken, however fast the machine."""
    (deployment.flower.home / "gate").write_text(str(rounds))


def journal_size(deployment, run_name):
    folder = deployment.folder(run_name)
    return sum(p.stat().st_size for p in folder.glob("*") if p.is_file())


def wait_for_rounds(deployment, run, run_name, since=0):
    """Wait until the journal has grown by some rounds since it had a size, before the run."""

    def grown():
        return journal_size(deployment, run_name) > since + 20_000

    wait_until(lambda: run.process.poll() is not None or grown(), 120, "rounds")
    assert run.process.poll() is None, run.text[-3000:]


def check(deployment, run_name, unbroken):
    """The run's coefficients are those of the unbroken one, and no checkpoint is left."""
    found = pd.read_csv(deployment.folder(run_name) / "coefficients.csv", index_col=[0, 1])
    expected = unbroken.coefficients
    assert list(found.index) == list(expected.index)
    np.testing.assert_allclose(found["estimate"], expected["estimate"], rtol=1e-12, atol=1e-12)
    metrics = json.loads((deployment.folder(run_name) / "result.json").read_text())["metrics"]
    assert metrics["loss"] == pytest.approx(unbroken.metrics["loss"], rel=1e-12)
    home = deployment.flower.home
    assert not [p for name in NAMES for p in (home / f"{name}-out").rglob("*.party")]


def test_a_run_that_one_of_three_forbids_and_its_owner_then_allows(deployment, capsys):
    """The first run of these nodes; the one that is allowed gives a simulation's numbers."""
    home, (parties, labels) = deployment.flower.home, make_data(NAMES, 240)

    def ledger(name):
        """Show a node's ledger, as its owner asks for it."""
        assert main(["privacy-ledger", str(home / f"{name}-out"), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        return found, {entry["kind"] for entry in found["entries"]}

    allow(home, "glm")
    run = submit(deployment, "same", "vfem", transport="messages", retries=0)
    assert run.finish(500) == 1
    refusal = r"party 'hospital'.* refuses by policy\.strategies: asked: strategy 'vfem'; allowed: "
    assert re.search(refusal + "'glm'", run.text), run.text[-3000:]
    # Nothing is there but ledgers, in which nothing has left.
    files = [p for name in NAMES for p in (home / f"{name}-out").rglob("*") if p.is_file()]
    assert {path.name.removeprefix(path.name.split(".")[0]) for path in files} <= {SUFFIX}
    for path in files:
        found, kinds = ledger(path.name.split(".")[0])
        assert kinds <= {"refused"}
        assert found["state"]["rows_told_of"] == 0
    assert ledger("hospital")[1] == {"refused"}
    assert not list((deployment.flower.results / "server").rglob("result.json"))

    allow(home, "glm", "vfem", "rounds")
    expected = simulate(VFEM(), parties, labels, alignment="plain", min_rows=20)
    for transport in ("channel", "messages"):
        run = submit(deployment, f"by-{transport}", "vfem", transport=transport)
        assert run.finish(500) == 0, run.text[-3000:]
        assert ("channels are open" in run.text) == (transport == "channel")
        folder = deployment.folder(f"by-{transport}")
        found = pd.read_csv(folder / "coefficients.csv", index_col=[0, 1])
        np.testing.assert_array_equal(found["estimate"], expected.coefficients["estimate"])
    for name in NAMES:
        found, kinds = ledger(name)
        assert "rows" in kinds, found["entries"]
        assert 100 < found["state"]["rows_told_of"] <= len(parties[name])
        assert found["state"]["smallest_set"] >= 20
        assert found["runs"][-1]["strategy"] == "vfem"
        assert found["runs"][-1]["name"] == "by-messages"


def test_a_network_that_is_cut_costs_nothing(deployment, unbroken):
    """No checkpoint is needed: parties come back by new streams."""
    bind = f"127.0.0.1:{free_port()}"
    proxy = Proxy(bind)
    open_gate(deployment, 1)
    try:
        run = submit(deployment, "cut", **{"channel-bind": bind, "channel-address": proxy.address})
        run.wait_for("3 channels are open")
        for rounds in (100, 200, 300, ROUNDS):
            open_gate(deployment, rounds)
            time.sleep(1.0)
            assert proxy.cut() > 0 or rounds == ROUNDS
        assert run.finish() == 0, run.text[-3000:]
    finally:
        proxy.close()
    assert proxy.connections > 6
    assert "is back by another stream" in run.text
    check(deployment, "cut", unbroken)


def test_party_killed_without_checkpoint_stops_the_run_and_names_it(deployment):
    open_gate(deployment, 10)
    run = submit(deployment, "killed")
    run.wait_for("3 channels are open")
    (pid,) = deployment.client_apps("court")
    open_gate(deployment, 20)
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    open_gate(deployment)
    assert run.finish(60) == 1
    assert time.monotonic() - started < 60
    assert "party 'court' failed" in run.text
    assert "its stream was cut" in run.text
    assert not list(deployment.folder("killed").glob("*.csv"))


def test_server_stopped_killed_and_superlink_restarted(deployment, unbroken):
    """One run broken off three times, resumed from its checkpoint each time."""
    open_gate(deployment, 100)
    run = submit(deployment, "night", checkpoint=True)
    run.wait_for("3 channels are open")
    wait_for_rounds(deployment, run, "night")
    number = run.text.split("Successfully started run ")[1].split()[0]
    answer = deployment.flwr("stop", number, "trial")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert run.finish(60) != 0
    assert "resume=true run-name='night'" in run.text

    since = journal_size(deployment, "night")
    open_gate(deployment, 200)
    run = submit(deployment, "night", resume=True)
    run.wait_for("going on with the run that broke off")
    wait_for_rounds(deployment, run, "night", since)
    for pid in deployment.apps("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    run.process.kill()

    since = journal_size(deployment, "night")
    open_gate(deployment, 300)
    run = submit(deployment, "night", resume=True)
    run.wait_for("going on with the run that broke off")
    wait_for_rounds(deployment, run, "night", since)
    for pid in [deployment.superlink.pid, *deployment.apps("flwr-serverapp")]:
        os.kill(pid, signal.SIGKILL)
    deployment.superlink.wait()
    run.process.kill()
    deployment.start_superlink()

    open_gate(deployment)
    run = submit(deployment, "night", resume=True)
    assert run.finish() == 0, run.text[-3000:]
    check(deployment, "night", unbroken)


def test_supernode_restarted_and_party_killed(deployment, unbroken):
    """Within one run: a SuperNode that comes back as another node, then a party's process."""
    open_gate(deployment, 100)
    run = submit(deployment, "storm", checkpoint=True)
    run.wait_for("3 channels are open")
    wait_for_rounds(deployment, run, "storm")
    deployment.kill_node("hospital")
    open_gate(deployment, 200)
    deployment.start_node("hospital")
    run.wait_for("['hospital'] came back")
    (pid,) = deployment.client_apps("bank")
    os.kill(pid, signal.SIGKILL)
    open_gate(deployment)
    assert run.finish() == 0, run.text[-3000:]
    assert "['bank'] came back" in run.text
    check(deployment, "storm", unbroken)


def test_nothing_is_left_of_the_runs(deployment):
    """The last of them: the parties' processes end with their runs."""
    wait_until(lambda: not deployment.apps("flwr-clientapp"), 60, "the parties' processes")
    assert not deployment.apps("flwr-serverapp")
