"""A Ray cluster of several hosts gives the bits of one process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HOSTS = Path(__file__).parents[1] / "kit" / "hosts.sh"

# Where no namespaces are permitted: each has an object store of its own, as a host has.
RAYLETS = """
from ray.cluster_utils import Cluster
cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
"""

PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy as np, pandas as pd, ray
{start}
from flwr_vertical import (
    Federation, Party, RayGrid, Table, memory_app, simulate, step)
from strategies.fknn import FKNN
from strategies.glm import VerticalGLM

rng = np.random.default_rng(0)
values = rng.normal(size=(300, 6))
values[rng.random(values.shape) < 0.05] = np.nan
data = Path(os.environ["RAY_TMPDIR"]) / "data.parquet"  # on the disk of the first host
pd.DataFrame(values, columns=list("abcdef")).to_parquet(data)
read = pd.read_parquet(data)
tables = {{f"p{{k}}": read.iloc[k:, 2 * k : 2 * k + 2] for k in range(3)}}
labels = pd.Series(rng.normal(size=300))

class Where(Party):
    @step
    def host(self, path):
        import os, ray
        return {{"node": ray.get_runtime_context().get_node_id(),
                 "address": ray.util.get_node_ip_address(), "sees": os.path.exists(path)}}

ray.init(log_to_driver=False)
while len(ray.nodes()) < 3:
    time.sleep(0.1)
nodes = [{{"party": name}} for name in tables]
own = {{name: Table.of(frame) for name, frame in tables.items()}}
with RayGrid(memory_app(Where), nodes, own) as grid:
    federation = Federation(grid)
    federation.open()
    found = federation.call("host", {{"path": str(data)}}).values()
ray.shutdown()
assert len({{reply["node"] for reply in found}}) == 3
print(sorted((reply["address"], reply["sees"]) for reply in found))
whole = {{name: frame.fillna(0.0) for name, frame in tables.items()}}
for strategy, *given in ((FKNN(), tables), (VerticalGLM(rows="all"), whole, labels)):
    one, three = (simulate(strategy, *given, seed=1, engine=engine)
                  for engine in ("local", "ray"))
    assert three.ledger.rounds == one.ledger.rounds
    if one.coefficients is not None:
        pd.testing.assert_frame_equal(three.coefficients, one.coefficients, check_exact=True)
    for name, table in (one.tables or {{}}).items():
        pd.testing.assert_frame_equal(three.tables[name], table, check_exact=True)
print("the same")
"""


def run(command, start=""):
    # Ray's sockets need a short path, which pytest's own folders do not have.
    with tempfile.TemporaryDirectory(prefix="r-") as folder:
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        return subprocess.run(
            [*command, sys.executable, "-c", PROGRAM.format(start=start)],
            env=environment | {"RAY_TMPDIR": folder}, capture_output=True, text=True, timeout=240,
        )  # fmt: skip


@pytest.mark.ray
def test_parties_on_three_hosts_of_a_cluster_give_the_same_bits():
    """Each host has an address, a memory and a disk of its own; the tables are on one disk."""
    tried = subprocess.run(["bash", HOSTS], capture_output=True, text=True)
    if tried.returncode:
        done = run([], RAYLETS)
        assert done.stdout.strip().endswith("the same"), done.stderr[-2000:]
        pytest.skip(f"three raylets of one host are the same; no namespaces: {tried.stderr}")
    done = run(["bash", str(HOSTS)])
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == [
        "[('10.9.0.1', True), ('10.9.0.2', False), ('10.9.0.3', False)]",
        "the same",
    ]
