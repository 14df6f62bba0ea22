"""What users and other packages rely on: public names, and which folder may import which."""

import ast
import importlib
import pathlib

import pytest

import flwr_vertical

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ["flwr_vertical", "strategies", "apps", "simulations"]  # none may import a later one


def modules(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path):
    """Dotted names of all modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; the others are absolute"
            found.add(str(node.module))
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def packages(path):
    return {name.split(".")[0] for name in imports(path)}


def test_public_names():
    assert sorted(flwr_vertical.__all__) == flwr_vertical.__all__
    assert set(flwr_vertical.__all__) >= {
        "Arbiter", "Federation", "FileStorage", "Kind", "Ledger", "LocalGrid", "MemoryStorage",
        "Party", "RayGrid", "RecordingGrid", "Result", "Strategy", "Summands", "Table",
        "available_strategies", "load_strategy", "make_strategy", "party_app",
        "register_strategy", "simulate", "step",
    }  # fmt: skip
    for name in flwr_vertical.__all__:
        assert getattr(flwr_vertical, name).__doc__, name


def test_every_package_s_public_names_exist():
    for init in ROOT.glob("flwr_vertical/**/__init__.py"):
        name = ".".join(init.parent.relative_to(ROOT).parts)
        package = importlib.import_module(name)
        for public in getattr(package, "__all__", []):
            assert hasattr(package, public), f"{name}.{public}"


@pytest.mark.parametrize("folder", FOLDERS[:3])
def test_imports_point_one_way(folder):
    above = set(FOLDERS[FOLDERS.index(folder) + 1 :]) | {"tests"}
    paths = modules(folder)
    assert len(paths) > 2
    wrong = {str(path.relative_to(ROOT)): packages(path) & above for path in paths}
    assert {path: names for path, names in wrong.items() if names} == {}


PURE = [
    *modules("flwr_vertical/crypto"),
    *modules("flwr_vertical/tables"),
    *modules("flwr_vertical/privacy"),
    *(
        ROOT / "strategies" / "copula" / f"{name}.py"
        for name in ("bridge", "correlation", "latent", "margins", "ranks", "release", "scores")
    ),
    ROOT / "strategies" / "fknn" / "distances.py",
    ROOT / "strategies" / "fknn" / "neighbours.py",
]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_modules_import_neither_flower_nor_the_protocol(path):
    names = imports(path)
    assert names
    parts = ("tables", "crypto", "errors", "privacy")
    allowed = tuple(f"flwr_vertical.{part}" for part in parts)
    own = {name for name in names if name.split(".")[0] == "flwr_vertical"}
    assert not {name for name in names if name.split(".")[0] == "flwr"}
    assert {name for name in own if not name.startswith(allowed)} <= {"flwr_vertical"}


def test_importing_the_core_needs_no_optional_package():
    """TenSEAL, Ray and torch are imported where they are used, not at the top of a module."""
    for path in modules("flwr_vertical") + modules("strategies"):
        top = {
            name.split(".")[0]
            for node in ast.parse(path.read_text()).body
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not top & {"tenseal", "ray", "torch"}, path


def test_every_strategy_states_what_it_discloses_in_its_own_module():
    for path in (ROOT / "strategies").glob("*/strategy.py"):
        text = path.read_text()
        assert "disclosure = (" in text, path
