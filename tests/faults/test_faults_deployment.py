"""What breaks on real nodes: every run ends with the unbroken run's numbers, or names the cause."""

import json
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
from deployments import Deployment, wait_until
from proxies import Proxy
from runtimes import free_port

from flwr_vertical import simulate
from strategies.vfem import VFEM
from tests.kit.rounds import Rounds

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

NAMES = ("bank", "court", "hospital")
ROUNDS = 1500  # half a minute: stopping a run takes some seconds, and none may end before


def make_data():
    rng = np.random.default_rng(11)
    index = [f"s{i:03}" for i in range(240)]
    parties = {
        name: pd.DataFrame(rng.normal(size=(240, 2)), index=index, columns=["a", "b"])
        for name in NAMES
    }
    labels = sum(table["a"] for table in parties.values()) + rng.normal(size=240)
    kept = {name: table[rng.random(240) > 0.3] for name, table in parties.items()}
    return kept, labels.rename("y")


@pytest.fixture(scope="module")
def unbroken():
    parties, labels = make_data()
    return simulate(Rounds(max_iter=ROUNDS), parties, labels, alignment="plain", progress=False)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    home = tmp_path_factory.mktemp("faults")
    parties, labels = make_data()
    labels.rename_axis("id").to_csv(home / "labels.csv")
    for name, table in parties.items():
        table.rename_axis("id").to_parquet(home / f"{name}.parquet")
    made = Deployment(
        home,
        {
            name: f"data='{home / name}.parquet' output='{home / name}-out' exchanges='sums' "
            "min-rows=20 policy.alignments='plain'"
            for name in NAMES
        },
    )
    yield made
    made.stop()


def submit(deployment, run_name, rounds=ROUNDS, **config):
    settings = {
        "strategy": "rounds",
        "parties": ",".join(NAMES),
        "labels": str(deployment.flower.home / "labels.csv"),
        "alignment": "plain",
        "transport": "channel",
        "rounds.max-iter": rounds,
    }
    return deployment.submit(run_name=run_name, **(settings | config))


def journal_size(deployment, run_name):
    folder = deployment.folder(run_name)
    return sum(p.stat().st_size for p in folder.glob("*") if p.is_file())


def wait_for_rounds(deployment, run, run_name, more=60_000):
    """Wait until the journal has grown by some rounds."""
    start = journal_size(deployment, run_name)
    wait_until(
        lambda: run.process.poll() is not None or journal_size(deployment, run_name) > start + more,
        120,
        "rounds",
    )
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


def test_a_network_that_is_cut_costs_nothing(deployment, unbroken):
    """No checkpoint is needed: parties come back by new streams."""
    bind = f"127.0.0.1:{free_port()}"
    proxy = Proxy(bind)
    try:
        run = submit(deployment, "cut", **{"channel-bind": bind, "channel-address": proxy.address})
        run.wait_for("3 channels are open")
        cuts = 0
        while run.process.poll() is None:
            cuts += proxy.cut() > 0
            time.sleep(1.0)
        assert run.finish() == 0, run.text[-3000:]
    finally:
        proxy.close()
    assert cuts >= 3
    assert proxy.connections > 6
    assert "is back by another stream" in run.text
    check(deployment, "cut", unbroken)


def test_party_killed_without_checkpoint_stops_the_run_and_names_it(deployment):
    run = submit(deployment, "killed", rounds=100_000)
    run.wait_for("3 channels are open")
    time.sleep(2.0)
    (pid,) = deployment.client_apps("court")
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert run.finish(60) == 1
    assert time.monotonic() - started < 60
    assert "party 'court' failed" in run.text
    assert "its stream was cut" in run.text
    assert not list(deployment.folder("killed").glob("*.csv"))


def test_server_stopped_killed_and_superlink_restarted(deployment, unbroken):
    """One run broken off three times, resumed from its checkpoint each time."""
    run = submit(deployment, "night", checkpoint=True)
    run.wait_for("3 channels are open")
    wait_for_rounds(deployment, run, "night")
    number = run.text.split("Successfully started run ")[1].split()[0]
    answer = deployment.flwr("stop", number, "trial")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert run.finish(60) != 0

    run = submit(deployment, "night", resume=True)
    run.wait_for("going on with the run that broke off")
    wait_for_rounds(deployment, run, "night")
    for pid in deployment.apps("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    run.process.kill()

    run = submit(deployment, "night", resume=True)
    run.wait_for("going on with the run that broke off")
    wait_for_rounds(deployment, run, "night")
    for pid in [deployment.superlink.pid, *deployment.apps("flwr-serverapp")]:
        os.kill(pid, signal.SIGKILL)
    deployment.superlink.wait()
    run.process.kill()
    deployment.start_superlink()

    run = submit(deployment, "night", resume=True)
    assert run.finish() == 0, run.text[-3000:]
    check(deployment, "night", unbroken)


def test_supernode_restarted_and_party_killed(deployment, unbroken):
    """Within one run: a SuperNode that comes back as another node, then a party's process."""
    run = submit(deployment, "storm", checkpoint=True)
    run.wait_for("3 channels are open")
    wait_for_rounds(deployment, run, "storm")
    deployment.kill_node("hospital")
    deployment.start_node("hospital")
    run.wait_for("['hospital'] came back")
    wait_for_rounds(deployment, run, "storm", more=20_000)
    (pid,) = deployment.client_apps("bank")
    os.kill(pid, signal.SIGKILL)
    assert run.finish() == 0, run.text[-3000:]
    assert "['bank'] came back" in run.text
    check(deployment, "storm", unbroken)


def test_a_step_that_fails_ends_the_run_with_status_1_and_its_cause(deployment):
    run = deployment.submit(
        strategy="fknn",
        parties=",".join(NAMES),
        alignment="plain",
        run_name="fails",
        **{"fknn.n-neighbors": 100_000},
    )
    assert run.finish() == 1
    assert "n_neighbors = 100000" in run.text


def test_a_party_that_is_stopped_is_named(deployment):
    run = submit(deployment, "stopped", rounds=100_000)
    run.wait_for("3 channels are open")
    time.sleep(1.0)
    (pid,) = deployment.client_apps("bank")
    started = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert run.finish(60) == 1
        assert time.monotonic() - started < 60
        assert "party 'bank' failed" in run.text
        assert "no sign of life" in run.text
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("transport", ["channel", "messages"])
def test_default_vfem_is_the_same_to_the_bit_by_both_transports(deployment, transport):
    run = deployment.submit(
        strategy="vfem",
        parties=",".join(NAMES),
        labels=str(deployment.flower.home / "labels.csv"),
        alignment="plain",
        transport=transport,
        run_name=f"same-{transport}",
    )
    assert run.finish(300) == 0, run.text[-3000:]
    assert ("channels are open" in run.text) == (transport == "channel")
    parties, labels = make_data()
    expected = simulate(VFEM(), parties, labels, alignment="plain", min_rows=20, progress=False)
    folder = deployment.folder(f"same-{transport}")
    found = pd.read_csv(folder / "coefficients.csv", index_col=[0, 1])
    np.testing.assert_array_equal(found["estimate"], expected.coefficients["estimate"])


def test_nothing_is_left_of_the_runs(deployment):
    """The last of them: the parties' processes end with their runs."""
    wait_until(lambda: not deployment.apps("flwr-clientapp"), 60, "the parties' processes")
    assert not deployment.apps("flwr-serverapp")
