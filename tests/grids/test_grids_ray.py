"""Ray itself: the same parties in actors, the same results, actors that die, and tasks.

A Ray takes ten seconds to start and an actor some more, so all tests of one share a Ray and grids.
The contract of strategies has all of them on a `RayGrid` without actors.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import channel_runs
import numpy as np
import pandas as pd
import pytest
from flwr.app import RecordDict
from flwr.serverapp import Grid

from apps.cli import main, run
from flwr_vertical import (
    Arbiter,
    Federation,
    LocalGrid,
    MemoryStorage,
    RayGrid,
    Table,
    memory_app,
    party_app,
    simulate,
)
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.protocol.messages import make_message
from simulations.replications import Job, Store, run_all
from strategies.trees import VerticalGBDT


def halves():
    """Party and arbiter of this test; classes made here travel to the actors by value."""
    import os

    import numpy as np
    import pandas as pd

    from flwr_vertical import Party, Summands, step

    class Worker(Party):
        @step
        def moments(self, scale):
            x = self.table.frame["x"].to_numpy()
            public = {"rows": len(x), "process": os.getpid()}
            return Summands({"sum": x * scale, "count": np.array([len(x)])}, public)

        @step
        def gpus(self):
            import ray

            return {"ids": [int(i) for i in ray.get_gpu_ids()]}

        @step
        def remember(self, value):
            self.state["sum"] = float(self.state.get("sum", 0.0)) + value
            self.cache["times"] = self.cache.get("times", 0) + 1
            return {"sum": self.state["sum"], "times": self.cache["times"]}

        @step
        def die(self, culprit):
            if self.name == culprit:
                os._exit(1)
            return {}

        @step
        def burn(self, culprit):
            if self.name == culprit:
                raise ValueError("the disk is on fire")
            return {}

        @step
        def hang(self, culprit):
            if self.name == culprit:
                import time

                time.sleep(60)
            return {}

        @step
        def keep(self):
            frame = pd.DataFrame({"x": [self.table.n_samples]}, index=[self.name])
            return {"where": self.save_output(frame)}

    return Worker, Arbiter


def tables(n):
    rng = np.random.default_rng(n)
    return {f"p{k:02}": Table.of(pd.DataFrame({"x": rng.normal(size=5)})) for k in range(n)}


def ray_grid(n, **kwargs):
    own = tables(n)
    return RayGrid(memory_app(*halves()), [{"party": name} for name in own], own, **kwargs)


def opened(grid, mode="masked", **kwargs):
    federation = Federation(grid, aggregation=mode, **({"retries": 0, "timeout": 60} | kwargs))
    federation.open()
    return federation


@pytest.fixture(scope="module")
def twelve(ray_cluster):
    """Twelve parties over two actors."""
    with ray_grid(12, n_actors=2) as grid:
        yield grid, opened(grid, retries=3)


@pytest.mark.ray
def test_twelve_parties_over_two_actors(twelve):
    own = tables(12)
    grid, federation = twelve
    assert isinstance(grid, Grid)
    assert federation.parties == sorted(own)
    total = federation.sum("moments", {"scale": 2.0})
    expected = 2 * sum(table.frame["x"].to_numpy() for table in own.values())
    np.testing.assert_allclose(total["sum"], expected, rtol=0, atol=12 * 2.0**-33)
    assert total["count"] == 60
    processes = {public["process"] for public in total.public.values()}
    assert len(processes) == 2
    assert os.getpid() not in processes
    # A party stays in its actor: its cache as well as its state survive.
    for value in (1.0, 2.0, 4.0):
        replies = federation.call("remember", {"value": value})
    assert {tuple(reply.values()) for reply in replies.values()} == {(7.0, 3)}
    federation.call("keep")
    outputs = grid.outputs()
    assert set(outputs) == set(own)
    assert outputs["p07"].loc["p07", "x"] == 5
    with pytest.raises(PartyError) as caught:
        federation.call("burn", {"culprit": "p00"})
    assert (caught.value.party, caught.value.step) == ("p00", "burn")
    assert caught.value.cause == "ValueError: the disk is on fire"


@pytest.mark.ray
def test_the_same_sums_as_on_a_local_grid(twelve):
    own = tables(12)
    app = party_app(halves()[0], storage=MemoryStorage(own))
    with LocalGrid(app, [{"party": name} for name in own]) as grid:
        local = opened(grid).sum("moments", {"scale": 0.1})
    ray = twelve[1].sum("moments", {"scale": 0.1})
    assert local.values.keys() == ray.values.keys()
    for name, value in local.values.items():
        np.testing.assert_array_equal(ray[name], value)


@pytest.mark.ray
def test_actors_that_die_or_hang_are_errors_that_name_the_party_and_closing_ends_them(ray_cluster):
    # The Ray of this process is used, and is left running.
    grid = ray_grid(2, n_actors=2, address="auto", num_gpus=1)
    federation = opened(grid, "plain", retries=2)
    assert federation.sum("moments", {"scale": 1.0})["count"] == 10
    ids = [reply["ids"] for reply in federation.call("gpus").values()]
    assert sorted(list(found) for found in ids) == [[0], [1]]

    with pytest.raises(PartyError) as caught:
        federation.call("die", {"culprit": "p01"})
    assert (caught.value.party, caught.value.step) == ("p01", "die")
    assert "error 8" in caught.value.cause
    assert "after 3 tries" in caught.value.cause

    actors = list(grid._actors)
    assert [is_alive(ray_cluster, actor) for actor in actors].count(True) == 1
    federation.timeout, federation.retries = 0.5, 0
    with pytest.raises(PartyError, match=r"no answer within 0\.5 s") as caught:
        federation.call("hang", {"culprit": "p00"}, parties=["p00"])
    assert caught.value.party == "p00"

    grid.close()
    deadline = time.monotonic() + 20
    while any(is_alive(ray_cluster, a) for a in actors) and time.monotonic() < deadline:
        time.sleep(0.1)  # Ray takes its time
    assert not any(is_alive(ray_cluster, actor) for actor in actors)
    assert ray_cluster.is_initialized()
    assert ray_cluster.get(ray_cluster.put(1)) == 1


def is_alive(ray, actor):
    try:
        ray.get(actor.saved.remote("outputs"), timeout=1.0)
    except ray.exceptions.GetTimeoutError:
        return True
    except ray.exceptions.RayActorError:
        return False
    return True


@pytest.mark.ray
def test_more_gpus_than_there_are_are_refused(ray_cluster):
    """Ray takes our word for what a machine has, so that this needs no GPU."""
    with pytest.raises(
        ConfigError, match=r"2 Ray actors with 1\.5 GPUs each were asked for, but Ray has 2"
    ):
        ray_grid(2, n_actors=2, num_gpus=1.5)
    assert ray_cluster.is_initialized()


def columns(n=40, n_parties=2):
    rng = np.random.default_rng(0)
    names = [f"s{i}" for i in range(n)]
    made = {}
    for k in range(n_parties):
        frame = pd.DataFrame(rng.normal(size=(n, 2)), index=names).add_prefix("c")
        made[f"p{k}"] = frame.drop(frame.index[k])
    return made, pd.Series((rng.random(n) < 0.5).astype(float), index=names, name="y")


@pytest.mark.ray
def test_a_strategy_that_labels_and_predicts_gives_the_same(ray_cluster):
    """Parts of a model come back from the actor."""
    assert_the_same_predictions(VerticalGBDT(n_trees=2, max_depth=2, n_bins=4, min_child=4))


def test_a_strategy_with_networks_gives_the_same(ray_in_process):
    """All but the actor, which would have to import PyTorch first."""
    pytest.importorskip("torch")
    from strategies.split import PlugVFL

    assert_the_same_predictions(
        PlugVFL(latent_dim=4, width=6, epochs=2, batch_size=16, precision="float64")
    )


def assert_the_same_predictions(strategy):
    given, labels = columns()
    local, ray = (
        simulate(strategy, given, labels.iloc[5:], min_rows=1, seed=3, **engine)
        for engine in ({}, {"engine": "ray", "n_actors": 1})
    )
    pd.testing.assert_frame_equal(ray.predictions, local.predictions, check_exact=True)
    assert ray._party_models.keys() == local._party_models.keys() == given.keys()
    assert ray.metrics == local.metrics
    assert (ray.ledger.rounds, ray.settings["engine"]) == (local.ledger.rounds, "ray")


@pytest.mark.ray
def test_parties_of_one_actor_are_served_over_channels_at_the_same_time(ray_cluster):
    ray_cluster.cloudpickle.register_pickle_by_value(channel_runs)
    names = [f"p{k}" for k in range(3)]
    own = {name: Table.of(pd.DataFrame({"x": [1.0]})) for name in names}
    nodes = [{"party": name} for name in names]
    with RayGrid(memory_app(channel_runs.Echo), nodes, own, n_actors=1) as inner:
        with ChannelGrid(inner, transport="channel") as grid:
            assert len(grid.channels) == 3
            rounds = Federation(grid, aggregation="plain", min_nodes=3, retries=0)
            rounds.open()
            assert [a["count"] for a in rounds.call("count").values()] == [1, 1, 1]
        rounds.grid = inner
        assert [a["count"] for a in rounds.call("count").values()] == [2, 2, 2]


@pytest.mark.ray
def test_replications_run_in_other_processes(tmp_path, ray_cluster):
    def where_it_ran(job, shared):  # Ray pickles it by value, as it is no module's
        import os

        return {"process": float(os.getpid()), "shared": float(shared)}

    jobs = [Job("a", {"seed": seed}) for seed in range(2)]
    store = Store(tmp_path / "r.csv")
    frame = run_all(jobs, where_it_ran, 7, store=store, context="c", title="t")
    assert ray_cluster.is_initialized()
    assert os.getpid() not in frame["value"].to_list()
    assert (frame[frame["metric"] == "shared"]["value"] == 7).all()


DEAD = "127.0.0.1:1"  # nothing listens there

_CHECK = """
    from ray._private.services import find_bootstrap_address
    assert find_bootstrap_address(None) == "127.0.0.1:1", "Ray looks elsewhere for its file"
"""


def run_beside_a_stale_file(code):
    # Ray's sockets need a short path, which pytest's own folders do not have.
    with tempfile.TemporaryDirectory(prefix="r-") as folder:
        stale = Path(folder) / "ray" / "ray_current_cluster"
        stale.parent.mkdir()
        stale.write_text(DEAD)
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_CHECK) + textwrap.dedent(code)],
            env=environment | {"RAY_TMPDIR": folder},
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip


@pytest.mark.ray
def test_grids_and_replications_start_a_ray_of_their_own_beside_the_file_of_a_dead_cluster():
    done = run_beside_a_stale_file("""
        import tempfile
        from pathlib import Path
        import numpy as np, pandas as pd, ray
        from flwr_vertical import simulate
        from simulations.replications import Job, Store, run_all
        from strategies.fknn import FKNN
        rng = np.random.default_rng(0)
        tables = {n: pd.DataFrame({n: rng.normal(size=20)}) for n in "ab"}
        tables["a"].iloc[3] = np.nan
        result = simulate(FKNN(n_neighbors=2), tables, engine="ray", n_actors=1)
        assert not result.tables["a"].isna().any().any()
        assert not ray.is_initialized()
        def double(job, shared):
            return {"value": 2.0 * job.settings["seed"]}
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "r.csv")
            jobs = [Job("a", {"seed": seed}) for seed in (1, 2)]
            frame = run_all(jobs, double, 0, store=store, context="c", title="t", workers=1)
        assert not ray.is_initialized()
        print(sorted(frame["value"]))
    """)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("[2.0, 4.0]")


@pytest.mark.parametrize(("given", "expected"), [(None, "local"), ("", "local"), ("auto", "auto")])
def test_the_command_starts_a_local_ray_unless_told_otherwise(
    given, expected, tmp_path, monkeypatch, capfd
):
    flwr = tmp_path / "flwr"
    flwr.write_text(
        f"#!{sys.executable}\nimport os, sys\nprint('RAY', os.environ['RAY_ADDRESS'])\nsys.exit(3)"
    )
    flwr.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(run, "_flwr", lambda: str(flwr))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    assert main.main(["run", str(tmp_path)]) == 3
    assert f"RAY {expected}\n" in capfd.readouterr().out


def test_replies_of_one_actor_are_returned_to_who_asks_for_them(ray_in_process):
    """Messages of an actor go in one call, and each reply is returned once."""
    own = tables(3)
    with RayGrid(memory_app(*halves()), [{"party": n} for n in own], own, n_actors=1) as grid:
        made = [make_message(RecordDict(), node) for node in (1, 2, 3)]
        first, second, third = grid.push_messages(made)
        for number in (second, first):
            (reply,) = grid.pull_messages([number])
            assert reply.metadata.reply_to_message_id == number
        grid._forget([third])
        assert grid.pull_messages([first, second, third]) == []
        numbers = list(grid.push_messages(made))
        grid._forget(numbers[:1])
        assert len(grid.pull_messages(numbers)) == 2
        assert not grid._pending
        assert not grid._replies


def test_a_negative_number_of_gpus_is_refused():
    pytest.importorskip("ray")
    from flwr_vertical import Party

    with pytest.raises(ConfigError, match="num_gpus must be 0 or more, got -1"):
        RayGrid(memory_app(Party), [{"party": "a"}], {}, num_gpus=-1)
