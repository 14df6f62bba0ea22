import os
import pathlib
import sys

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: one BLAS thread each
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def ray_cluster():
    """One local Ray with two CPUs for all tests that need one."""
    ray = pytest.importorskip("ray")
    from flwr_vertical.grids.ray import start_ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    start_ray(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
