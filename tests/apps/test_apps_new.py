"""`flwr-vertical new`, other words of the command line, and the bundle that Flower makes."""

import importlib
import pathlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from io import BytesIO

import pytest
from flwr.cli.build import build_fab_from_disk

from apps.cli.main import main
from apps.cli.policy import answer
from apps.cli.run_config import app_defaults, checked_config
from apps.new import write_app
from flwr_vertical import __version__, load_strategy, make_strategy
from flwr_vertical.errors import ConfigError
from flwr_vertical.settings.toml import read_items
from strategies import BUILTIN

ROOT = pathlib.Path(__file__).parents[2]
SHOWN = [name for name in BUILTIN if (ROOT / "apps" / f"{name}.toml").exists()]


def bundle(folder):
    return zipfile.ZipFile(BytesIO(build_fab_from_disk(folder))).namelist()


def test_the_bundle_of_this_project_passes_flowers_checks(tmp_path):
    """Of a copy, since a virtual environment, which is left out, has ten thousands of files."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv*", "venv", ".git", "data"))
    (copy / ".venv" / "lib").mkdir(parents=True)
    (copy / ".venv" / "lib" / "module.py").touch()
    names = bundle(copy)
    needed = {"LICENSE", "pyproject.toml", "apps/server_app.py", "strategies/fknn/strategy.py"}
    assert needed <= set(names)
    left_out = ("tests/", "docs/", "simulations/", ".venv/")
    assert not [name for name in names if name.startswith(left_out)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "credit-scores"
    assert main(["new", str(folder), "--strategy", "glm", "--parties", "bank, court,clinic"]) == 0
    return folder


def test_a_new_app_is_a_flower_app_without_its_nodes(app):
    names = set(bundle(app))
    assert {"credit_scores/server_app.py", "credit_scores/client_app.py"} <= names
    assert "presets/glm.toml" in names
    assert not [name for name in names if name.startswith("nodes/")]
    assert {"README.md", "LICENSE"} <= names  # as format 1, Flower Hub's, asks
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert f"flwr-vertical[simulation]=={__version__}" in project["project"]["dependencies"]


def test_it_runs_the_apps_of_this_package(app, monkeypatch):
    monkeypatch.syspath_prepend(str(app))
    for name in ("server_app", "client_app"):
        ours = importlib.import_module(f"flwr_vertical.apps.{name}")
        assert importlib.import_module(f"credit_scores.{name}").app is ours.app


def test_every_party_has_a_node_config_and_a_policy_of_its_own(app):
    assert sorted(path.name for path in (app / "nodes").iterdir()) == ["bank", "clinic", "court"]
    config = tomllib.loads((app / "nodes" / "court" / "node.toml").read_text())
    assert (config["party"], config["policy"]) == ("court", "nodes/court/policy.toml")
    readme = (app / "README.md").read_text()
    assert "strategies glm" in readme
    config = app_defaults(app)
    assert config["parties"] == "bank,court,clinic"


@pytest.mark.parametrize("name", SHOWN)
def test_settings_and_policies_of_every_strategy_fit_each_other(tmp_path, monkeypatch, name):
    folder = tmp_path / "fit"
    write_app(folder, name, ["bank", "court"])
    monkeypatch.chdir(folder)
    preset = f"presets/{name}.toml"
    defaults = app_defaults(folder)
    assert defaults["strategy"] == name
    assert checked_config(defaults, read_items([preset]), here=False)["strategy"] == name
    nodes = sorted(path.parent.name for path in folder.glob("nodes/*/node.toml"))
    asks = make_strategy(name, defaults).needs_arbiter
    assert nodes == sorted(["bank", "court", *(["arbiter"] if asks else [])])
    assert "num-supernodes" not in (folder / preset).read_text()  # the run's parties say it
    for node in nodes:
        found = answer([f"nodes/{node}/node.toml"], None, [preset], str(folder))
        assert found.refusals == [], str(found)
    other = next(n for n in ("mean", "max") if n != name)
    assert answer(["nodes/bank/node.toml"], None, [f'strategy="{other}"'], str(folder)).refusals


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="exists already, and nothing is overwritten"):
        write_app(tmp_path / "mine", "fknn", ["bank", "court"])
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("name", "strategy", "parties", "why"),
    [
        ("my_app", "fknn", ["a"], "'my_app' cannot be an app's name"),
        ("x" * 33, "fknn", ["a"], "at most 32"),
        ("ok", "fkn", ["a"], r"did you mean 'fknn'"),
        ("ok", "predict", ["a"], "has no demonstration to begin with"),
        ("ok", "fknn", ["a", "a"], "expected different names"),
        ("ok", "fknn", ["a", "../b"], r"party name '\.\./b' is not usable"),
        ("ok", "fknn", ["a", "server"], "cannot be named 'server', as the server is"),
        ("ok", "fknn", ["a", "Arbiter"], "the name of another role"),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_is(tmp_path, name, strategy, parties, why):
    with pytest.raises(ConfigError, match=why):
        write_app(tmp_path / name, strategy, parties)
    assert not list(tmp_path.iterdir())


# -- other words of the command line ---------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["rum", "."], "invalid choice: 'rum'"),
        (["strategy"], "(did you mean 'strategies'?)"),
        (["run", ".", "--run-confg", "x=1"], "(did you mean '--run-config'?)"),
        (["align", "a", "b", "--rows", "unoin"], "(did you mean 'union'?)"),
        (["completion", "bsh"], "(did you mean 'bash'?)"),
        (["align", "a", "b", "--grid", "1"], "(of another command)"),
        (
            ["check", "a.csv", "b.csv"],
            "'b.csv' is an argument too many: 'flwr-vertical check' takes TABLE_OR_FOLDER;",
        ),
    ],
)
def test_a_misspelt_word_is_one_line_that_names_it(capsys, arguments, why):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_help_says_what_commands_do_not_what_is_to_come(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "stop" in said
    assert "(not " not in said


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert f"flwr-vertical {__version__} (flwr 1." in capsys.readouterr().out


def test_help_names_what_there_is_to_choose_from(capsys):
    for command in ("run", "strategies", "new"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        said = "".join(capsys.readouterr().out.split())
        assert all(name in said for name in BUILTIN), command


def test_bash_completes_commands_and_names(capsys, tmp_path):
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    told = {}
    for words in (["pol"], ["strategies", "gbd"], ["new", "x", "--strategy", "fedpsg"], ["r"]):
        typed = " ".join(["flwr-vertical", *words])
        code = (
            f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; "
            '_shtab_flwr_vertical; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        told[words[-1]] = done.stdout.split()
    assert told == {"pol": ["policy"], "gbd": ["gbdt"],
                    "fedpsg": ["fedpsg-ar"], "r": ["run", "report"]}  # fmt: skip


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_scripts_too(capsys, shell):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "privacy-ledger" in said
    assert load_strategy("fknn").name in said
    assert sys.executable not in said
