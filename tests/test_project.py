"""The README and the CI script tell the truth."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from apps import generate
from apps.client_app import app as client_app
from apps.server_app import app as server_app
from flwr_vertical import __version__, load_strategy, make_strategy, registry
from flwr_vertical.settings.toml import flat
from strategies import BUILTIN, register_all

ROOT = pathlib.Path(__file__).parents[1]


def shell_blocks():
    return re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_ci_runs_the_test_command_of_the_readme():
    command = next(block.strip() for block in shell_blocks() if "pytest" in block)
    assert command in (ROOT / ".ci" / "run").read_text()


def test_ci_runs_what_that_command_leaves_out(project):
    left_out = re.findall(r"not (\w+)", project["tool"]["pytest"]["ini_options"]["addopts"])
    chosen = " ".join(re.findall(r"-m '([^']+)'", (ROOT / ".ci" / "run").read_text()))
    assert len(left_out) >= 2
    assert set(left_out) <= set(re.findall(r"(?<!not )\b\w+", chosen))


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_run_config_holds_every_setting_with_the_constructors_type(project):
    register_all()
    config = flat(project["tool"]["flwr"]["app"]["config"])
    for name in BUILTIN:
        strategy = make_strategy(name, config)
        given = {key.removeprefix(f"{name}.") for key in config if key.startswith(f"{name}.")}
        assert given == {key.replace("_", "-") for key in strategy.settings()}
        for key, value in load_strategy(name)().settings().items():
            assert isinstance(config[f"{name}.{key.replace('_', '-')}"], type(value))


def test_columns_are_standardised_unless_stated_otherwise(project):
    """One default everywhere: of the class, of the run config, of the presets."""
    register_all()
    config = flat(project["tool"]["flwr"]["app"]["config"])
    stated = [key for key in config if key.endswith(".standardize")]
    assert {key.split(".")[0] for key in stated} >= {"fknn", "glm", "svm"}
    assert all(config[key] is True for key in stated)
    assert all(load_strategy(key.split(".")[0])().standardize is True for key in stated)
    for preset in sorted((ROOT / "apps").glob("*.toml")):
        given = flat(tomllib.loads(preset.read_text()))
        assert all(given[key] is True for key in given if key.endswith("standardize"))


def test_presets_only_use_known_keys(project):
    register_all()
    known = set(flat(project["tool"]["flwr"]["app"]["config"]))
    presets = sorted((ROOT / "apps").glob("*.toml"))
    assert presets
    for preset in presets:
        config = flat(tomllib.loads(preset.read_text()))
        assert set(config) <= known
        make_strategy(config["strategy"], config)


def test_what_follows_from_the_fields_is_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr(registry, "_REGISTERED", {})  # other tests register their own
    found = generate.main(["--check"])
    assert found == 0, capsys.readouterr()


def test_ci_checks_that_it_is():
    assert "  python -m apps.generate --check" in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_readme_names_every_strategy():
    text = (ROOT / "README.md").read_text()
    assert [name for name in BUILTIN if f"`{name}`" not in text] == []


def test_a_stale_file_is_named_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "apps").mkdir()
    for name in ("how-to", "methods", "reference"):
        shutil.copytree(ROOT / "docs" / name, tmp_path / "docs" / name)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    project = (tmp_path / "pyproject.toml").read_text()
    stale = project.replace("n-neighbors = 5", "n-neighbors = 4")
    assert stale != project
    (tmp_path / "pyproject.toml").write_text(stale)
    assert generate.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "out of date: pyproject.toml" in said
    assert "out of date: docs/strategies.md" in said
    assert "how-to" not in said
    assert (tmp_path / "pyproject.toml").read_text() == stale
    assert generate.main([]) == 0
    assert (tmp_path / "pyproject.toml").read_text() == project
    assert generate.main(["--check"]) == 0
    (tmp_path / "apps" / "mine.toml").write_text('strategy = "fknn"\nfknn.n-neighbours = 3\n')
    assert generate.main(["--check"]) == 1
    assert "did you mean 'fknn.n-neighbors'" in capsys.readouterr().err


def test_entry_points_name_the_built_in_strategies(project):
    assert project["project"]["entry-points"]["flwr_vertical.strategies"] == BUILTIN


def test_pinned_versions_take_the_oldest_python_that_is_promised(project):
    oldest = project["project"]["requires-python"].removeprefix(">=") + ".0"
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    found = {d.name.lower().replace("_", "-"): d for d in importlib.metadata.distributions()}
    here = [found[name] for raw in pinned if (name := raw.lower().replace("_", "-")) in found]
    assert len(here) > len(pinned) / 2
    ask_for_more = [
        f"{d.name} {needed}"
        for d in here
        if (needed := d.metadata.get("Requires-Python")) and oldest not in SpecifierSet(needed)
    ]
    assert not ask_for_more


def test_versions_agree(project):
    assert project["project"]["version"] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
def test_a_release_is_refused_before_anything_is_built(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
    alone = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words):
        subprocess.run(["git", *words], cwd=clone, env=alone, check=True)

    def refusal():
        made = subprocess.run([".ci/release"], cwd=clone, env=alone, capture_output=True, text=True)
        assert made.returncode == 2
        assert not (clone / "dist").exists()
        return made.stderr

    (clone / "README.md").write_text("")
    assert "the tree has changes" in refusal()
    git("checkout", "-q", ".")
    git("-c", "tag.gpgSign=false", "tag", f"v{__version__}")
    assert f"the tag v{__version__} exists" in refusal()
    git("tag", "-d", f"v{__version__}")
    assert "git has no signing key" in refusal()


def test_core_dependencies_are_light(project):
    names = {re.split(r"[<>=\[]", item)[0] for item in project["project"]["dependencies"]}
    assert not names & {"torch", "tenseal", "ray"}


def test_components_are_flower_apps(project):
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    components = project["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "apps.server_app:app", "clientapp": "apps.client_app:app"}
    assert isinstance(client_app, ClientApp)
    assert isinstance(server_app, ServerApp)
