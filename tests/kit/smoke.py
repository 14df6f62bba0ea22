"""What must work with every version of Python and Flower that is claimed.

It uses the installed package alone: copied elsewhere and run there by `.ci/versions`.
"""

import pathlib
import subprocess
import sys

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

from apps.cli.main import main
from apps.cli.run_config import app_defaults
from flwr_vertical import LocalGrid, available_strategies, load_demo, load_strategy, simulate
from flwr_vertical.channel import ChannelGrid
from flwr_vertical.errors import ConfigError


def test_a_simulation_in_this_process():
    demo = load_demo("wine", n_parties=3)
    result = simulate(load_strategy("fknn")(), demo.parties)
    assert not result.tables["clinic"].isna().to_numpy().any()
    assert result.ledger.rounds > 3


def test_a_new_app_over_messages_and_over_channels(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path / "results"))
    folder = tmp_path / "smoke"
    assert main(["new", str(folder), "--strategy", "vfem"]) == 0
    assert len(build_fab_from_disk(folder)) > 1000
    monkeypatch.syspath_prepend(str(folder))
    from smoke import client_app, server_app

    nodes = [{"partition-id": k, "num-partitions": 2} for k in range(2)]
    for transport in ("messages", "channel"):
        config = app_defaults(folder) | {"run-name": transport, "transport": transport}
        with LocalGrid(client_app.app, nodes, config, max_parallel=2) as grid:
            server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
        assert (tmp_path / "results" / "server" / transport / "report.html").exists()


def test_every_strategy_loads_or_names_its_package():
    told = []
    for name in available_strategies():
        try:
            load_strategy(name)
        except ConfigError as error:
            told.append(str(error))
    assert all("pip install" in text for text in told)


def test_the_command_line_and_flowers_own():
    beside = pathlib.Path(sys.executable).parent
    for command in (["flwr-vertical", "--version"], ["flwr", "--version"]):
        done = subprocess.run(
            [str(beside / command[0]), *command[1:]], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_channels_name_what_is_wrong():
    with pytest.raises(ConfigError, match="unknown transport"):
        ChannelGrid(None, transport="pigeon")
