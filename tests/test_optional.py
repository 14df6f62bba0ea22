"""Optional packages: what is said where one is absent or broken."""

import importlib
import json
import sys

import pandas as pd
import pytest

from flwr_vertical import LocalGrid, Party, Strategy, load_strategy, party_app, registry, step
from flwr_vertical.errors import ConfigError, PartyError
from flwr_vertical.node import MemoryStorage
from flwr_vertical.optional import how_to_install, require
from flwr_vertical.tables import Table
from strategies import BUILTIN
from tests.kit.blocked import Absent


def test_a_package_that_is_there_is_returned():
    assert require("json", "a test") is json


def test_an_absent_package_is_named_with_its_extra_and_what_needs_it():
    with pytest.raises(ConfigError) as caught:
        require("no_such_package_at_all", "strategy 'false-vfl'")
    for part in (
        "strategy 'false-vfl'", "no_such_package_at_all", "pip install no_such_package_at_all"
    ):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import a_part_that_is_not_there", "a_part_that_is_not_there"),
        ("raise OSError('libgomp.so.1: cannot open')", "libgomp"),
    ],
)
def test_a_broken_package_is_not_called_absent(tmp_path, monkeypatch, code, cause):
    (tmp_path / "broken_package.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"cannot be imported.*{cause}") as caught:
        require("broken_package", "a test")
    assert "pip install" not in str(caught.value)
    assert "broken_package" not in sys.modules


def block(monkeypatch, *packages):
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(packages), *sys.meta_path])


def test_a_package_that_is_blocked_counts_as_absent(monkeypatch):
    block(monkeypatch, "torch")
    with pytest.raises(ConfigError, match="not installed here"):
        require("torch", "a test")


DEEP = """
import torch

from flwr_vertical import Party, Strategy


class Net(Strategy):
    name = "net"
    party = Party
    tensor = torch.zeros(2)

    def run(self, federation, alignment, result, progress):
        pass
"""


@pytest.fixture
def deep_package(tmp_path, monkeypatch):
    """A strategy whose module imports torch at its top, on a machine without torch."""
    (tmp_path / "deep_example").mkdir()
    (tmp_path / "deep_example" / "__init__.py").write_text("")
    (tmp_path / "deep_example" / "net.py").write_text(DEEP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry._REGISTERED, "net", "deep_example.net:Net")
    with monkeypatch.context() as absent:
        block(absent, "torch")
        yield absent
    for name in [name for name in sys.modules if name.startswith("deep_example")]:
        del sys.modules[name]


NEEDS_TORCH = r"strategy 'net'.* needs 'torch'.*pip install 'flwr-vertical\[torch\]'"


def test_a_strategy_that_needs_an_absent_package_says_which(deep_package):
    with pytest.raises(ConfigError, match=NEEDS_TORCH):
        load_strategy("net")


@pytest.mark.parametrize("folder", ["false_vfl", "split"])
def test_a_deep_strategy_without_torch_says_so(monkeypatch, folder):
    package = f"strategies.{folder}"
    for name in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    block(monkeypatch, "torch")
    needs = r"needs 'torch', which is not installed here: pip install 'flwr-vertical\[torch\]'"
    with pytest.raises(ModuleNotFoundError, match=rf"{package} {needs}"):
        importlib.import_module(package)
    name = next(name for name, target in BUILTIN.items() if target.startswith(package + ":"))
    with pytest.raises(ConfigError, match=needs):
        load_strategy(name)


def test_with_torch_the_same_module_is_loaded(deep_package):
    deep_package.undo()
    pytest.importorskip("torch")
    assert load_strategy("net").tensor.shape == (2,)


class Anything(Party):
    @step
    def work(self):
        return {}


class Server(Strategy):
    name = "net"
    party = Anything

    def run(self, federation, alignment, result, progress):
        federation.call("work")


def test_a_node_without_the_package_is_named_to_the_server(deep_package):
    """As on real nodes: the server has torch, one party's machine has not."""

    def pick(context):
        if context.node_config["party"] == "bank":
            load_strategy("net")
        return Anything, Server.arbiter

    table = Table.of(pd.DataFrame({"x": [1.0, 2.0]}))
    storage = MemoryStorage({"bank": table, "court": table})
    nodes = [{"party": "bank"}, {"party": "court"}]
    with (
        LocalGrid(party_app(pick, storage=storage), nodes) as grid,
        pytest.raises(PartyError, match=NEEDS_TORCH) as caught,
    ):
        Server().start(grid=grid, alignment="plain")
    assert caught.value.party == "bank"


def test_extras_are_named_where_there_is_one():
    assert "pip install 'flwr-vertical[ckks,torch]' other in" in how_to_install(
        ["torch", "tenseal", "other"]
    )
