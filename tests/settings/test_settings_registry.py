"""Strategies by name: other people's, broken ones, hidden ones, with their settings."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from third_party import install, install_known_cells

from apps.cli import main, run
from apps.cli.run_config import app_defaults, checked_config
from flwr_vertical import (
    Party,
    Strategy,
    Summands,
    load_strategy,
    make_strategy,
    registry,
    simulate,
    step,
)
from flwr_vertical.errors import ConfigError
from flwr_vertical.node import Arbiter
from flwr_vertical.protocol.declaration import FACTS, Protocol, Round
from flwr_vertical.settings.toml import toml_value

ROOT = Path(__file__).parents[2]


@pytest.fixture
def known_cells(tmp_path, monkeypatch):
    folder = install_known_cells(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(folder)
    yield load_strategy("known-cells")
    sys.modules.pop("somebody_elses", None)


@pytest.fixture
def defaults():
    return app_defaults(ROOT)


@pytest.fixture
def no_flower(monkeypatch):
    def start():
        raise AssertionError("Flower was started")

    monkeypatch.setattr(run, "_flwr", start)


TABLES = {
    "bank": pd.DataFrame({"u": [1.0, np.nan, 3.0]}, index=list("abc")),
    "court": pd.DataFrame({"v": [1.0, 2.0], "w": [1.0, 2.0]}, index=list("ab")),
}


def test_a_strategy_of_somebody_else_runs_with_its_settings(known_cells):
    result = simulate(known_cells(2.5, columns="u,v"), TABLES)
    assert result.metrics["cells"] == pytest.approx(2.5 * 4)
    assert result.settings["columns"] == "u,v"
    assert result.settings["unit"] == "none"
    from flwr_vertical.strategies import KnownCells

    assert KnownCells is known_cells


def test_its_settings_from_a_run_config(known_cells):
    made = make_strategy("known-cells", {"settings": '{"scale": 2, "columns": ["u"]}'})
    assert made == known_cells(scale=2.0, columns=("u",))
    both = {"settings": '{"scale": 2}', "known-cells.scale": 3.0, "known-cells.unit": "cells"}
    assert make_strategy("known-cells", both) == known_cells(2.0, unit="cells")
    with pytest.raises(ConfigError, match=r"no settings \['scael'\].*did you mean"):
        make_strategy("known-cells", {"settings": '{"scael": 2}'})
    for text in ("scale=2", "[2]", "2"):
        with pytest.raises(ConfigError, match="settings must be a JSON object"):
            make_strategy("known-cells", {"settings": text})
    with pytest.raises(ConfigError, match="strategy 'known-cells': scale must be a number above 0"):
        make_strategy("known-cells", {"settings": '{"scale": "big"}'})


@pytest.mark.usefixtures("known_cells")
def test_its_own_table_becomes_the_text_that_flower_lets_through(defaults):
    given = {"strategy": "known-cells", "known-cells.scale": 2.0, "seed": 3}
    found = checked_config(defaults, given)
    assert found == {"strategy": "known-cells", "seed": 3, "settings": '{"scale": 2.0}'}
    more = checked_config(defaults, given | {"settings": '{"unit": "cells"}'})
    assert more["settings"] == '{"scale": 2.0, "unit": "cells"}'
    assert set(more) <= set(defaults)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fknn.n-neighbours": 3}, r"no settings .* \(did you mean 'fknn.n-neighbors'\?\)"),
        ({"strategi": "glm"}, r"unknown setting 'strategi' \(did you mean 'strategy'\?\)"),
        ({"strategy": "fkn"}, r"unknown strategy 'fkn' \(did you mean 'fknn'\?\)"),
        ({"fknn.n-neighbors": 0}, "strategy 'fknn': n_neighbors must be an integer of at least 1"),
        ({"fknn.weights": "gauss"}, "strategy 'fknn': unknown weights 'gauss'"),
        (
            {"strategy": "glm", "glm.bounds": "{}", "glm.row-norm": 0.5},
            "strategy 'glm': bounds, row_norm",
        ),
        ({"seed": "1"}, "seed must be an integer, got '1'"),
        ({"checkpoint": 1}, "checkpoint must be true or false, got 1"),
        ({"aggregation": "open"}, "unknown aggregation 'open'"),
        ({"timeout": -1}, "timeout must be a number above 0, got -1"),
        ({"known-cells.scale": 2.0}, "of the strategy 'known-cells', but strategy = 'fknn' is run"),
        ({"strategy": "known-cells", "known-cells.scael": 2.0}, "did you mean 'known-cells.scale'"),
        ({"strategy": "known-cells", "known-cells.scale": -2.0}, "'known-cells': scale must be"),
    ],
)
@pytest.mark.usefixtures("known_cells", "no_flower")
def test_a_wrong_setting_is_named_before_anything_is_started(given, said, defaults, capsys):
    with pytest.raises(ConfigError, match=said):
        checked_config(defaults, given)
    items = " ".join(f"{key}={toml_value(value)}" for key, value in given.items())
    assert main.main(["run", str(ROOT), "--run-config", items]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1


def test_an_app_without_strategies_has_its_keys_checked(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\nlearning-rate = 0.1\n")
    defaults = app_defaults(tmp_path)
    assert checked_config(defaults, {"learning-rate": 1}) == {"learning-rate": 1}
    with pytest.raises(ConfigError, match="did you mean 'learning-rate'"):
        checked_config(defaults, {"learning-rat": 1})


def test_a_strategy_that_only_the_nodes_have_is_not_checked_here(defaults, capsys):
    given = {"strategy": "not_installed_here:Method"}
    assert checked_config(defaults, given, here=False) == given
    assert "settings are not checked here" in capsys.readouterr().err


BROKEN = "raise RuntimeError('the licence has expired')"
NEEDY = "import no_such_package_anywhere"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    folder = install(
        tmp_path / "broken",
        {"broken_module": BROKEN, "needy_module": NEEDY},
        {"broken": "broken_module:Method", "needy": "needy_module:Method"},
    )
    monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("broken")
def test_a_strategy_that_cannot_be_imported_is_shown_with_the_reason(capsys):
    assert main.main(["strategies"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "CANNOT BE USED" in lines["broken"]
    assert "(RuntimeError: the licence has expired)" in lines["broken"]
    assert "needs 'no_such_package_anywhere', which is not installed here" in lines["needy"]
    assert lines["fknn"].startswith("Vertical federated k-nearest-neighbour")
    assert load_strategy("fknn").name == "fknn"
    from flwr_vertical import strategies

    assert strategies.FKNN is load_strategy("fknn")
    with pytest.raises(ConfigError, match=r"strategy 'broken': cannot load 'broken_module:Method'"):
        load_strategy("broken")


def test_classes_by_name_are_those_of_the_registry():
    from flwr_vertical import strategies

    assert {"FKNN", "VFEM", "VerticalGLM"} <= set(dir(strategies))
    for name, meant in (("FKN", "FKNN"), ("GLM", "VerticalGLM"), ("fknn", "FKNN")):
        words = rf"'{name}' is installed \(did you mean '{meant}'\?\)"
        with pytest.raises(AttributeError, match=words):
            getattr(strategies, name)


def test_settings_of_one_strategy_are_shown(capsys):
    assert main.main(["strategies", "vfem"]) == 0
    shown = capsys.readouterr().out
    assert 'vfem.covariance = "full"   {"full", "block"}' in shown
    assert "labels:    needed" in shown
    assert "every party:" in shown
    assert main.main(["strategies", "nope"]) == 2


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("folder", "from flwr_vertical.strategies import FKNN"),  # as README has it
        ("folder", "from strategies.fknn import FKNN"),
        ("file", "from flwr_vertical.strategies import FKNN"),
    ],
)
def test_a_folder_of_the_user_that_hides_the_package_is_named(tmp_path, kind, line):
    hiding = tmp_path / ("strategies" if kind == "folder" else "strategies.py")
    if kind == "folder":
        hiding.mkdir()
        (hiding / "__init__.py").touch()
    hiding.touch()
    code = (
        "from flwr_vertical import register_strategy\n"
        "register_strategy('fknn', 'strategies.fknn:FKNN')\n"
        f"{line}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert f"the {kind} {hiding} has the name of the package 'strategies'" in said
    assert "rename it" in said


class Needy(Strategy):
    """Needs a package."""

    name = "needy"
    party = Party
    requires = ("torch",)

    def run(self, federation, alignment, result, progress):
        raise AssertionError("nothing may start")


def test_a_package_that_is_not_there_is_named_before_the_run(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = r"strategy 'needy': needs 'torch'.*pip install 'flwr-vertical\[torch\]'"
    with pytest.raises(ConfigError, match=said):
        simulate(Needy(), TABLES)


def test_a_class_without_halves_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Half", type("Half", (Strategy,), {}), raising=False)
    with pytest.raises(ConfigError, match="does not say its name and party"):
        load_strategy(f"{__name__}:Half")


class CountingParty(Party):
    @step
    def count(self, scale: float) -> Summands:
        return Summands({"x": np.ones(1)})

    @step
    def guess(self, scale) -> Summands:
        return Summands({"x": np.ones(1)})


COUNT = Round("count", "a number", tells=FACTS)


class TakingParty(CountingParty):
    @step
    def hello(self) -> Summands:
        return Summands({"x": np.ones(1)})

    @step
    def labels(self) -> Summands:
        return Summands({"x": np.ones(1)})


class TakingArbiter(Arbiter):
    @step
    def farewell(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": "two words"}, "has name = 'two words', expected letters"),
        ({"name": 3}, "has name = 3, expected letters"),
        ({"party": Strategy}, "expected a subclass of Party"),
        ({"party": TakingParty}, r"TakingParty has the steps \['hello', 'labels'\], .* rename"),
        ({"arbiter": TakingArbiter}, r"TakingArbiter has the steps \['farewell'\]"),
        ({"protocol": [COUNT]}, r"expected Protocol\(Round"),
        ({"protocol": Protocol(COUNT, "guess")}, "has the part 'guess', expected Round"),
        ({"protocol": Protocol(COUNT, Round("guess", "x", tells=FACTS))},
         r"step 'guess' takes \['scale'\] of any type"),
    ],
)  # fmt: skip
def test_a_class_that_says_what_cannot_be_used_is_refused_before_the_run(said, why):
    attributes = {"name": "counting", "party": CountingParty, "protocol": Protocol(COUNT)}
    run = {"run": lambda self, federation, *_: federation.sum("count", {"scale": 1.0})}
    simulate(type("Counting", (Strategy,), attributes | run)(), TABLES, progress=False)
    with pytest.raises(ConfigError, match=why):
        simulate(type("Counting", (Strategy,), attributes | run | said)(), TABLES)


def test_predictions_of_another_form_are_refused():
    def run(self, federation, alignment, result, progress):
        result.predictions = [0.5]

    listed = type("Listed", (Strategy,), {"name": "listed", "party": Party, "run": run})
    with pytest.raises(ConfigError, match=r"result\.predictions is list, expected a DataFrame"):
        simulate(listed(), TABLES, progress=False)


def test_strategies_that_cannot_be_loaded_are_named_in_one_line(monkeypatch, caplog):
    load = registry.load_strategy

    def loads(name):
        if name in {"vertigan", "false-vfl"}:
            raise ConfigError("no torch")
        return load(name)

    monkeypatch.setattr(registry, "load_strategy", loads)
    assert registry.node_keys()
    said = [record.getMessage() for record in caplog.records if "node config" in record.msg]
    assert said == [
        "keys of a node config that only false-vfl, vertigan read are unknown: no torch"
    ]
