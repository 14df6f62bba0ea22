"""What users and other packages rely on: public names, and which folder may import which."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import flwr_vertical
from flwr_vertical import load_strategy
from strategies import BUILTIN, register_all

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


# The folders and modules of the core, from the bottom: none imports a later one.
CORE = [
    "errors", "version", "optional", "arrays", "settings", "privacy", "crypto", "tables", "sources",
    "incomplete", "pages", "grading", "results", "reports", "result", "protocol", "policy",
    "privacy_ledger", "grids", "channel", "node",
    "server", "products", "alignment", "app", "predictions",
    "strategy", "registry", "strategies", "single_parties", "simulation_inputs",
    "simulation", "validation",
]  # fmt: skip


def part_of(name):
    """The folder or module of the core that a dotted name belongs to, None for other packages."""
    first, *rest = name.split(".")
    return rest[0] if first == "flwr_vertical" and rest and rest[0] in CORE else None


def test_no_folder_of_the_core_imports_upwards_or_in_a_circle():
    base = ROOT / "flwr_vertical"
    found = {path.relative_to(base).parts[0].removesuffix(".py") for path in base.rglob("*.py")}
    assert found - {"__init__"} <= set(CORE)
    wrong = []
    for path in modules("flwr_vertical"):
        own = path.relative_to(base).parts[0].removesuffix(".py")
        if own == "__init__":  # the facade of all
            continue
        parts = {part_of(name) for name in imports(path)} - {None}
        wrong += [
            f"{path.relative_to(ROOT)} imports {part}"
            for part in parts
            if CORE.index(part) > CORE.index(own)
        ]
        assert "flwr_vertical" not in imports(path), f"{path} imports the facade"
    assert wrong == []
    for sealed in ("grids", "channel"):  # are given an app, and know neither side
        for path in modules(f"flwr_vertical/{sealed}"):
            assert not {part_of(name) for name in imports(path)} & {"node", "server", "tables"}


def test_no_folder_of_the_core_is_a_room_for_everything():
    lines = {}
    for path in modules("flwr_vertical"):
        folder = path.relative_to(ROOT / "flwr_vertical").parts[0]
        lines[folder] = lines.get(folder, 0) + len(path.read_text().splitlines())
    assert max(lines.values()) <= 0.2 * sum(lines.values()), lines


def graph(*folders):
    """By module, the modules of these folders that it imports: anywhere, and for types alone."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in modules(folder)
    }
    found = {}
    for name, path in names.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & set(names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found[name] |= {full if full in names else str(node.module)} & set(names)
    return {name: to - {name} for name, to in found.items()}


def circles(edges):
    """Nodes of a graph that can be reached from themselves."""

    def reached(start):
        seen, left = set(), [start]
        while left:
            new = edges.get(left.pop(), set()) - seen
            seen |= new
            left += new
        return seen

    return {name for name in edges if name in reached(name)}


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}


def test_no_module_imports_in_a_circle():
    """Nor inside a function, nor for its types alone."""
    assert circles(graph(*FOLDERS)) == set()


def test_no_folder_imports_in_a_circle():
    edges = {}
    for name, to in graph(*FOLDERS).items():
        own = ".".join(name.split(".")[:2])
        # The facade of the core is above all of it, and stands in no circle of folders.
        edges.setdefault(own, set()).update(
            folder for other in to if (folder := ".".join(other.split(".")[:2])) != own
        )
    assert circles(edges) == set()


def test_no_import_of_own_modules_hides_in_a_string():
    """Strategies, alignments and studies are named in registries, and looked up there alone."""
    registries = {
        "flwr_vertical/registry.py", "flwr_vertical/alignment/registry.py",
        "simulations/registry.py",
    }  # fmt: skip
    third_party = {  # looked for where they are used
        "flwr_vertical/optional.py", "flwr_vertical/protocol/trees.py",
        "flwr_vertical/crypto/_numbers.py", "flwr_vertical/crypto/ckks_products.py",
        "flwr_vertical/results/displays.py", "apps/screenshots.py",
    }  # fmt: skip
    for folder in FOLDERS:
        for path in modules(folder):
            where = str(path.relative_to(ROOT))
            if where in registries:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                    assert where in third_party, where
                    said = ast.unparse(node.args[0]).strip("'")
                    assert said.split(".")[0] not in FOLDERS, (where, said)


# Modules above 400 lines, and names of two classes, that other work is mending now.
LONG = ("flwr_vertical/products/ciphertext.py", "flwr_vertical/products/masked.py")
TWICE = {
    "Block", "Discriminator", "Held", "Layout", "Level", "Maximum", "Minimum",
    "Moments", "Node", "OutOfReachError", "Path", "Problem", "Targets",
    "VoteSteps",
}  # fmt: skip


def test_no_module_is_too_long():
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in FOLDERS
        for path in modules(folder)
    }
    assert {path: n for path, n in lines.items() if n > 400 and path not in LONG} == {}


def test_no_two_classes_of_core_and_strategies_have_one_name():
    homes = {}
    for folder in FOLDERS[:2]:
        for path in modules(folder):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {
        name: paths for name, paths in homes.items() if len(paths) > 1 and name not in TWICE
    } == {}


def test_party_halves_are_four_classes_deep_at_most():
    """Counted from the method's own class to `Party`, which is the core's."""
    register_all()
    for name in BUILTIN:
        above = load_strategy(name).party.__mro__
        depth = [cls.__name__ for cls in above[: above.index(flwr_vertical.Party)]]
        assert len(depth) + 1 <= 4, (name, depth)


def test_no_party_inherits_from_another_method():
    """Shared are the core's classes and those of a family, not those of a method's folder."""
    register_all()
    for name in BUILTIN:
        party = load_strategy(name).party
        home = party.__module__.split(".")[:3]  # strategies, family, method
        for cls in party.__mro__[1:]:
            place = cls.__module__.split(".")
            if place[0] == "strategies" and len(place) > 3:
                assert place[:3] == home, (name, cls)


PURE = [
    *modules("flwr_vertical/crypto"),
    *modules("flwr_vertical/tables"),
    *modules("flwr_vertical/privacy"),
    *(
        ROOT / "flwr_vertical/products" / f"{name}.py"
        for name in ("arithmetic", "columns", "noise")
    ),
    *(
        ROOT / "strategies/copula" / f"{name}.py"
        for name in (
            "rank_to_normal",
            "correlation",
            "latent",
            "margins",
            "ranks",
            "release",
            "scores",
        )
    ),
    *(
        ROOT / "strategies/linear/prediction" / f"{name}.py"
        for name in ("conditional_regressions", "regressions", "table")
    ),
    ROOT / "strategies/fknn" / "distances.py",
    ROOT / "strategies/fknn" / "neighbours.py",
]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_modules_import_neither_flower_nor_the_protocol(path):
    names = imports(path)
    assert names
    arithmetic = ("arithmetic", "noise")  # pure themselves, as this test checks
    parts = (
        "arrays",
        "tables",
        "crypto",
        "errors",
        "privacy",
        *(f"products.{name}" for name in arithmetic),
    )
    allowed = tuple(f"flwr_vertical.{part}" for part in parts)
    own = {name for name in names if name.split(".")[0] == "flwr_vertical"}
    assert not {name for name in names if name.split(".")[0] == "flwr"}
    assert {name for name in own if not name.startswith(allowed)} <= {"flwr_vertical"}


OPTIONAL = {"tenseal", "ray", "torch"}
TORCH = (
    "false_vfl",
    "split",
    "neural",
    "gan",
    "vertigan",
)  # folders of methods that train networks
# They take a second or two.
SLOW = {"matplotlib", "scipy.optimize", "scipy.stats", "sklearn", "sqlalchemy"}


def test_optional_packages_are_imported_where_they_are_used():
    """TenSEAL, Ray and torch, not at the top of a module; but torch where networks are."""
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
        deep = path.parent.name in TORCH and path.name != "__init__.py"
        assert not top & OPTIONAL - ({"torch"} if deep else set()), path


def without_optional_packages(code):
    """Run code in a process of its own, in which no optional package can be imported."""
    block = (
        "import sys; from tests.kit.blocked import Absent\n"
        f"sys.meta_path.insert(0, Absent({sorted(OPTIONAL)}))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", block + code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_importing_the_core_needs_no_optional_package():
    done = without_optional_packages(
        "import pkgutil, importlib, flwr_vertical, strategies\n"
        "torch = {'false_vfl', 'split', 'neural', 'gan', 'strategies.vertigan.networks'}\n"
        "for package in (flwr_vertical, strategies):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        parts = {*found.name.split('.'), found.name}\n"
        "        if not parts & torch:\n"
        "            importlib.import_module(found.name)\n"
        "strategies.register_all()\n"
        "assert set(strategies.BUILTIN) <= set(flwr_vertical.available_strategies())\n"
        "for name, target in strategies.BUILTIN.items():\n"
        "    try:\n"
        "        flwr_vertical.load_strategy(name)\n"
        "    except flwr_vertical.errors.ConfigError as error:\n"
        "        assert \"pip install 'flwr-vertical[torch]'\" in str(error), (name, error)\n"
        "        print('needs torch:', name)\n"
    )
    assert done.returncode == 0, done.stderr
    # Only a strategy that says so in its name's place may need one.
    deep = [name for name, target in BUILTIN.items() if target.split(":")[0].split(".")[1] in TORCH]
    assert set(done.stdout.replace("needs torch: ", "").split()) <= set(deep)


def test_the_facade_of_strategies_with_the_apps_imports_none_even_if_it_is_there():
    """Nor slow packages of which most messages have no need: a process may serve one only."""
    code = (
        "import sys, apps.client_app, apps.server_app, flwr_vertical, strategies.fknn\n"
        "strategies.register_all(); flwr_vertical.available_strategies()\n"
        f"found = set(sys.modules) & {OPTIONAL | SLOW}\n"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_strategy_states_what_it_discloses_beside_its_code():
    """In its class, or in one above it that is a method's, too; the core's states nothing."""
    register_all()
    for name in BUILTIN:
        states = next(cls for cls in load_strategy(name).__mro__ if "disclosure" in vars(cls))
        assert states.__module__.startswith("strategies."), name
        assert states.disclosure, name
