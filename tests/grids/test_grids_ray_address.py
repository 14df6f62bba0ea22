"""What a Ray that was killed leaves behind must not hang the next run; actors with GPUs."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from flwr_vertical import cli
from flwr_vertical.errors import ConfigError

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
def test_a_grid_starts_beside_the_file_of_a_dead_cluster():
    done = run_beside_a_stale_file("""
        import numpy as np, pandas as pd, ray
        from flwr_vertical import simulate
        from strategies.fknn import FKNN
        rng = np.random.default_rng(0)
        tables = {n: pd.DataFrame({n: rng.normal(size=20)}) for n in "ab"}
        tables["a"].iloc[3] = np.nan
        result = simulate(FKNN(n_neighbors=2), tables, engine="ray", progress=False)
        assert not result.tables["a"].isna().any().any()
        print("done")
    """)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("done")


@pytest.mark.ray
def test_replications_start_beside_the_file_of_a_dead_cluster():
    done = run_beside_a_stale_file("""
        import tempfile
        from pathlib import Path
        from simulations.replications import Job, Store, run_all
        def double(job, shared):
            return {"value": 2.0 * job.settings["seed"]}
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "r.csv")
            jobs = [Job("a", {"seed": seed}) for seed in (1, 2)]
            frame = run_all(jobs, double, 0, store=store, context="c", title="t", workers=1)
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
    monkeypatch.setattr(cli, "_flwr", lambda: str(flwr))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    assert cli.main(["run", str(tmp_path)]) == 3
    assert f"RAY {expected}\n" in capfd.readouterr().out


@pytest.mark.ray
def test_actors_get_gpus():
    """Ray takes our word for what a machine has, so that this needs no GPU."""
    code = """
        import pandas as pd, ray
        from flwr_vertical import Federation, Party, RayGrid, Table, memory_app, step
        from flwr_vertical.errors import ConfigError
        class Looker(Party):
            @step
            def gpus(self):
                import ray
                return {"ids": [int(i) for i in ray.get_gpu_ids()]}
        tables = {n: Table.of(pd.DataFrame({"x": [1.0]})) for n in "abcd"}
        nodes = [{"party": n} for n in tables]
        ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
        with RayGrid(memory_app(Looker), nodes, tables, n_actors=2, num_gpus=1) as grid:
            federation = Federation(grid, aggregation="plain")
            federation.open()
            told = federation.call("gpus")
            print(sorted({tuple(reply["ids"]) for reply in told.values()}))
        try:
            RayGrid(memory_app(Looker), nodes, tables, n_actors=2, num_gpus=1.5)
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "[(0,), (1,)]" in done.stdout
    assert "2 Ray actors with 1.5 GPUs each were asked for, but Ray has 2" in done.stdout


def test_a_negative_number_of_gpus_is_refused():
    pytest.importorskip("ray")
    from flwr_vertical import Party, RayGrid, memory_app

    with pytest.raises(ConfigError, match="num_gpus must be 0 or more, got -1"):
        RayGrid(memory_app(Party), [{"party": "a"}], {}, num_gpus=-1)
