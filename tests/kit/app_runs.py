"""The app's own code over a LocalGrid: its defaults, nodes with files of their own, one run."""

import logging
import pathlib
import tomllib

import pytest
from flwr.app import Context, RecordDict

from apps.client_app import app as client_app
from apps.server_app import app as server_app
from flwr_vertical import LocalGrid
from flwr_vertical.settings.toml import flat

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEFAULTS = flat(PROJECT["tool"]["flwr"]["app"]["config"])


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of results and of the nodes' files."""
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path / "results"))
    yield tmp_path
    logging.getLogger("flwr_vertical").handlers.clear()
    logging.getLogger("flwr_vertical").propagate = True


def run_app(nodes, /, wrap=lambda grid: grid, app=client_app, **settings):
    """Run it, and return the wrapped grid."""
    # Public IDs name the completed rows, so that tables can be compared by index.
    config = DEFAULTS | {"patience": 5.0, "run-name": "test", "alignment": "plain"}
    config |= {key.replace("_", "-"): value for key, value in settings.items()}
    with LocalGrid(app, nodes, config) as grid:
        wrapped = wrap(grid)
        server_app(wrapped, Context(1, 1, {}, RecordDict(), config))
    return wrapped


def simulated(n):
    return [{"partition-id": k, "num-partitions": n} for k in range(n)]


def own_files(home, **tables):
    nodes = []
    for name, table in tables.items():
        path = home / f"{name}.csv"
        table.to_csv(path)
        node = {"party": name, "data": str(path), "output": str(home / f"{name}-out")}
        nodes.append(node | {"policy.alignments": "plain,private-id"})
    return nodes


def preset(name, part=""):
    """Return the settings of a preset that begin with a word, flat."""
    settings = flat(tomllib.loads((ROOT / "apps" / f"{name}.toml").read_text()))
    return {key: value for key, value in settings.items() if key.startswith(part)}
