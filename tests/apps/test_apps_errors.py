"""What is wrong is one line that names it: in Flower's log, at the server and at a party."""

import json
import logging
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from flwr.common.logger import log as flower_log

from apps.client_app import app as client_app
from apps.server_app import app as server_app
from flwr_vertical import LocalGrid
from flwr_vertical.errors import VerticalError
from flwr_vertical.settings.toml import flat

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path / "results"))
    for name in ("bank", "court"):
        table = pd.DataFrame({"id": [f"c{k}" for k in range(8)], name: range(8)})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    yield tmp_path
    logging.getLogger("flwr_vertical").handlers.clear()
    logging.getLogger("flwr_vertical").propagate = True


def failing_run(home, caplog, court=None, n=2, **settings):
    """Return Flower's line on a run that fails, as its ServerApp process would write it."""
    config = flat(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    )
    config |= {"patience": 0.5, "run-name": "test", "strategy": "mean", "parties": "bank,court"}
    config |= {key.replace("_", "-"): value for key, value in settings.items()}
    nodes = [
        {"party": name, "data": str(home / f"{name}.csv"), "output": str(home / name)}
        for name in ("bank", "court")
    ]
    nodes[1] |= court or {}
    with LocalGrid(client_app, nodes[:n], config, max_parallel=2) as grid:
        with pytest.raises(VerticalError) as caught:
            server_app(grid, Context(1, 1, {}, RecordDict(), config))
        caplog.clear()
        with caplog.at_level(logging.ERROR, "flwr"):
            logger = logging.getLogger("flwr")
            logger.addHandler(caplog.handler)
            try:  # as flwr.superlink.runtime.run_serverapp does
                flower_log(
                    logging.ERROR, "%s raised an exception", "ServerApp", exc_info=caught.value
                )
            finally:
                logger.removeHandler(caplog.handler)
    line = caplog.handler.format(caplog.records[-1])
    assert "Traceback" not in line
    assert "\n" not in line
    return line


def test_a_misspelt_key_of_a_node_config_is_named_with_the_party(home, caplog):
    line = failing_run(home, caplog, {"max-epsilom": 1.0})
    assert "party 'court'" in line
    assert "unknown key 'max-epsilom'" in line
    assert "did you mean 'max-epsilon'" in line


def test_a_wrong_path_is_named_with_the_party(home, caplog):
    line = failing_run(home, caplog, {"data": str(home / "curt.csv")})
    assert "party 'court'" in line
    assert str(home / "curt.csv") in line


def test_a_party_that_is_not_there_is_named(home, caplog):
    line = failing_run(home, caplog, n=1)
    assert "1 of 2 nodes are connected" in line
    assert "party 'court' is absent" in line


def test_other_errors_keep_their_traceback(caplog):
    try:
        raise KeyError("x")
    except KeyError as error:
        record = logging.LogRecord("flwr", logging.ERROR, "", 0, "m", (), (KeyError, error, None))
    for check in logging.getLogger("flwr").filters:
        check(record) if callable(check) else check.filter(record)
    assert record.exc_info is not None


def test_the_server_remembers_which_node_was_which_party(home):
    config = flat(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    )
    config |= {"strategy": "mean", "patience": 5.0, "run-name": "test"}
    nodes = [{"partition-id": k, "num-partitions": 2} for k in range(2)]
    with LocalGrid(client_app, nodes, config, max_parallel=2) as grid:
        server_app(grid, Context(1, 1, {}, RecordDict(), config))
    kept = json.loads((home / "results" / "server" / "node-names.json").read_text())
    assert sorted(kept["nodes"].values()) == kept["last"] == ["clinic", "laboratory"]
