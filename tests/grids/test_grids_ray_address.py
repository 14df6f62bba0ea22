"""Which Ray is used: one that was killed leaves things that must not hang the next run."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from apps.cli import main
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
        result = simulate(FKNN(n_neighbors=2), tables, engine="ray", n_actors=1, progress=False)
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
    monkeypatch.setattr(main, "_flwr", lambda: str(flwr))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    assert main.main(["run", str(tmp_path)]) == 3
    assert f"RAY {expected}\n" in capfd.readouterr().out


def test_a_negative_number_of_gpus_is_refused():
    pytest.importorskip("ray")
    from flwr_vertical import Party, RayGrid, memory_app

    with pytest.raises(ConfigError, match="num_gpus must be 0 or more, got -1"):
        RayGrid(memory_app(Party), [{"party": "a"}], {}, num_gpus=-1)
