"""`RayGrid`: the same parties in Ray actors, the same results, and actors that die."""

import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest
from flwr.serverapp import Grid

from flwr_vertical import Arbiter, Federation, LocalGrid, MemoryStorage, RayGrid, Table, party_app
from flwr_vertical.app import memory_app
from flwr_vertical.errors import PartyError

pytestmark = pytest.mark.ray


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


def test_twelve_parties_over_two_actors(ray_cluster):
    own = tables(12)
    with ray_grid(12, n_actors=2) as grid:
        assert isinstance(grid, Grid)
        federation = opened(grid)
        assert federation.parties == sorted(own)
        total = federation.sum("moments", {"scale": 2.0})
        expected = 2 * sum(table.frame["x"].to_numpy() for table in own.values())
        np.testing.assert_allclose(total["sum"], expected, rtol=0, atol=12 * 2.0**-33)
        assert total["count"] == 60
        assert len({public["process"] for public in total.public.values()}) == 2
        # A party stays in its actor: its cache as well as its state survive.
        for value in (1.0, 2.0, 4.0):
            replies = federation.call("remember", {"value": value})
        assert {tuple(reply.values()) for reply in replies.values()} == {(7.0, 3)}
        federation.call("keep")
        outputs = grid.outputs()
        assert set(outputs) == set(own)
        assert outputs["p07"].loc["p07", "x"] == 5


def test_the_same_sums_as_on_a_local_grid(ray_cluster):
    own = tables(3)
    nodes = [{"party": name} for name in own]
    app = party_app(halves()[0], storage=MemoryStorage(own))
    totals = []
    for grid in (LocalGrid(app, nodes), ray_grid(3, n_actors=2)):
        with grid:
            totals.append(opened(grid).sum("moments", {"scale": 0.1}))
    assert totals[0].values.keys() == totals[1].values.keys()
    for name, value in totals[0].values.items():
        np.testing.assert_array_equal(totals[1][name], value)


@pytest.mark.parametrize("retries", [0, 2])
def test_an_actor_that_dies_becomes_an_error_that_names_the_party(ray_cluster, retries):
    with ray_grid(2, n_actors=2) as grid:
        federation = opened(grid, retries=retries)
        with pytest.raises(PartyError) as caught:
            federation.call("die", {"culprit": "p01"})
        assert (caught.value.party, caught.value.step) == ("p01", "die")
        assert "error 8" in caught.value.cause
        assert f"after {retries + 1} tr" in caught.value.cause


def test_a_step_that_raises_names_the_party(ray_cluster):
    with ray_grid(2, n_actors=1) as grid, pytest.raises(PartyError) as caught:
        opened(grid, retries=3).call("burn", {"culprit": "p00"})
    assert (caught.value.party, caught.value.step) == ("p00", "burn")
    assert caught.value.cause == "ValueError: the disk is on fire"


def test_a_party_that_hangs_is_named(ray_cluster):
    with ray_grid(2, n_actors=2) as grid:
        federation = opened(grid)
        federation.timeout = 0.5
        with pytest.raises(PartyError, match=r"no answer within 0\.5 s") as caught:
            federation.call("hang", {"culprit": "p01"})
        assert caught.value.party == "p01"


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_running_ray_is_used_and_left_running(ray_cluster, address):
    with ray_grid(2, n_actors=1, address=address) as grid:
        assert opened(grid, "plain").sum("moments", {"scale": 1.0})["count"] == 10
    assert ray_cluster.is_initialized()
    assert ray_cluster.get(ray_cluster.put(1)) == 1


def test_closing_ends_the_actors(ray_cluster):
    grid = ray_grid(2, n_actors=2)
    opened(grid)
    actors = list(grid._actors)
    grid.close()

    def is_alive(actor):
        try:
            ray_cluster.get(actor.outputs.remote())
        except ray_cluster.exceptions.RayActorError:
            return False
        return True

    deadline = time.monotonic() + 20
    while any(map(is_alive, actors)) and time.monotonic() < deadline:  # Ray takes its time
        time.sleep(0.1)
    assert not any(map(is_alive, actors))


def test_a_ray_of_its_own_is_shut_down():
    code = """
        import numpy as np, pandas as pd, ray
        from flwr_vertical import simulate
        from strategies.fknn import FKNN
        rng = np.random.default_rng(0)
        tables = {n: pd.DataFrame({n: rng.normal(size=20)}) for n in "ab"}
        tables["a"].iloc[3] = np.nan
        result = simulate(FKNN(n_neighbors=2), tables, engine="ray", progress=False)
        assert not result.tables["a"].isna().any().any()
        assert not ray.is_initialized()
        print("shut down")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("shut down")
