"""What users and other packages rely on: public names, and which folder may import which."""

import ast
import functools
import importlib
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd

import flwr_vertical
from flwr_vertical import load_strategy, simulate
from strategies import BUILTIN, register_all
from strategies.glm import VerticalGLM

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ["flwr_vertical", "strategies", "apps", "simulations"]  # none may import a later one


def modules(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@functools.cache
def nodes(path):
    """What a file consists of, with relative imports made absolute."""
    found = tuple(ast.walk(ast.parse(path.read_text())))
    for node in found:
        if isinstance(node, ast.ImportFrom) and node.level:
            own = path.relative_to(ROOT).parts
            # A wheel has this folder within `flwr_vertical`.
            assert own[0] == "apps", f"{path}: relative import; the others are absolute"
            base = ".".join(own[: len(own) - node.level])
            node.module = f"{base}.{node.module}" if node.module else base
    return found


@functools.cache
def imports(path):
    """Dotted names of all modules that a file imports, wherever in the file."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


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


def test_the_facade_finds_each_name_where_types_are_told_it_is():
    """It is written twice: for type checkers and documentation, and for the first use."""
    told = next(n for n in nodes(ROOT / "flwr_vertical/__init__.py")[0].body if type(n) is ast.If)
    homes = {alias.name: found.module for found in told.body for alias in found.names}
    assert homes == flwr_vertical._HOMES
    assert set(homes) == set(flwr_vertical.__all__) <= set(dir(flwr_vertical))


def test_importing_the_facade_imports_neither_flower_nor_pandas():
    heavy = {"flwr", "pandas", "numpy", "pyarrow"}
    lines = printed(f"import sys, flwr_vertical; print(sorted({heavy} & set(sys.modules)))")
    assert lines.strip() == "[]"


def test_every_package_s_public_names_exist():
    for init in ROOT.glob("flwr_vertical/**/__init__.py"):
        name = ".".join(init.parent.relative_to(ROOT).parts)
        package = importlib.import_module(name)
        for public in getattr(package, "__all__", []):
            assert hasattr(package, public), f"{name}.{public}"


def test_imports_point_one_way():
    for place, folder in enumerate(FOLDERS[:3]):
        above = {*FOLDERS[place + 1 :], "tests"}
        assert len(modules(folder)) > 2
        for path in modules(folder):
            assert not {name.split(".")[0] for name in imports(path)} & above, path


# The folders and modules of the core, from the bottom: none imports a later one.
CORE = [
    "errors", "version", "counted", "log", "optional", "arrays", "scratch", "whole_files",
    "settings", "privacy", "crypto", "tables", "sources",
    "incomplete", "pages", "grading", "results", "reports", "result", "protocol", "policy",
    "privacy_ledger", "grids", "channel", "node",
    "server", "products", "alignment", "app", "predictions",
    "strategy", "registry", "strategies", "single_parties", "simulation_inputs",
    "simulation", "simulation_files", "validation", "apps",
]  # fmt: skip


def part_of(name):
    """The folder or module of the core that a dotted name belongs to, None for other packages."""
    first, *rest = name.split(".")
    return rest[0] if first == "flwr_vertical" and rest and rest[0] in CORE else None


def test_no_folder_of_the_core_imports_upwards_or_in_a_circle():
    for path in modules("flwr_vertical"):
        own = path.relative_to(ROOT / "flwr_vertical").parts[0].removesuffix(".py")
        if own == "__init__":  # the facade of all
            continue
        parts = {part_of(name) for name in imports(path)} - {None}
        assert parts <= set(CORE[: CORE.index(own) + 1]), path
        assert "flwr_vertical" not in imports(path), f"{path} imports the facade"
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
    edges = {name: set() for name in names}
    for name, path in names.items():
        for node in nodes(path):
            if isinstance(node, ast.Import):
                edges[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                full = {alias: f"{node.module}.{alias.name}" for alias in node.names}
                edges[name] |= {f if f in names else str(node.module) for f in full.values()}
    return {name: to & set(names) - {name} for name, to in edges.items()}


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


def test_no_module_and_no_folder_imports_in_a_circle():
    """Nor inside a function, nor for its types alone."""
    of_modules, edges = graph(*FOLDERS), {}
    assert circles(of_modules) == set()
    for name, to in of_modules.items():
        own = ".".join(name.split(".")[:2])
        # The facade of the core is above all of it, and stands in no circle of folders.
        edges.setdefault(own, set()).update(
            folder for other in to if (folder := ".".join(other.split(".")[:2])) != own
        )
    assert circles(edges) == set()


def test_no_import_of_own_modules_hides_in_a_string():
    """Strategies, alignments and studies are named in registries, and looked up there alone."""
    registries = {
        "flwr_vertical/__init__.py", "flwr_vertical/registry.py",
        "flwr_vertical/alignment/registry.py", "simulations/registry.py",
    }  # fmt: skip
    third_party = {  # looked for where they are used
        "flwr_vertical/optional.py", "flwr_vertical/protocol/trees.py",
        "flwr_vertical/crypto/ckks_products.py",
        "flwr_vertical/results/displays.py", "apps/screenshots.py",
        "simulations/synthesis/dpmm_tables.py",
    }  # fmt: skip
    for folder in FOLDERS:
        for path in modules(folder):
            where = str(path.relative_to(ROOT))
            if where in registries:
                continue
            for node in nodes(path):
                if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                    assert where in third_party, where
                    name = ast.unparse(node.args[0]).strip("'")
                    assert name.split(".")[0] not in FOLDERS, (where, name)


# Modules above 400 lines, and names of two classes, that other work is mending now.
LONG = ("flwr_vertical/products/ciphertext.py", "flwr_vertical/products/masked.py")
TWICE = {
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
            for node in nodes(path)[0].body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {
        name: paths for name, paths in homes.items() if len(paths) > 1 and name not in TWICE
    } == {}


SHARED_ROOMS = {"common", "linear", "neural", "normal"}
OF_ANOTHER_METHOD = {"forest": {"trees"}}
"""Forests grow trees of the same codes by the same steps, and vote on them besides."""


def test_party_halves_are_four_classes_deep_and_of_their_method():
    """Counted to `Party`; above stand the core's classes and the shared rooms' alone."""
    register_all()
    for name in BUILTIN:
        party = load_strategy(name).party
        above = party.__mro__[: party.__mro__.index(flwr_vertical.Party) + 1]
        assert len(above) <= 4, (name, above)
        places = [cls.__module__.split(".") for cls in above]
        assert {place[0] for place in places} <= {"strategies", "flwr_vertical"}, name
        rooms = {place[1] for place in places if place[0] == "strategies"}
        others = rooms - SHARED_ROOMS - {places[0][1]}
        assert others == OF_ANOTHER_METHOD.get(name, set()), (name, others)


def test_pure_modules_import_neither_flower_nor_the_protocol():
    pure = {
        "flwr_vertical/products": ["arithmetic", "columns", "noise"],
        "strategies/copula": [
            "rank_to_normal", "correlation", "latent", "margins", "ranks", "release", "scores",
        ],
        "strategies/linear/prediction": ["conditional_regressions", "regressions"],
        "strategies/fknn": ["distances", "neighbours"],
    }  # fmt: skip
    paths = [ROOT / folder / f"{name}.py" for folder, names in pure.items() for name in names]
    for folder in ("crypto", "tables", "privacy"):
        paths += modules(f"flwr_vertical/{folder}")
    parts = ("arrays", "counted", "tables", "crypto", "errors", "log", "optional", "privacy",
             "scratch", "products.arithmetic", "products.noise", "whole_files")  # fmt: skip
    allowed = tuple(f"flwr_vertical.{part}" for part in parts)
    for path in paths:
        assert imports(path) or path.name == "__init__.py", path
        assert "flwr" not in {name.split(".")[0] for name in imports(path)}, path
        own = {name for name in imports(path) if name.split(".")[0] == "flwr_vertical"}
        assert {name for name in own if not name.startswith(allowed)} <= {"flwr_vertical"}, path


OPTIONAL = {"tenseal", "ray", "torch"}
TORCH = ("false_vfl", "split", "neural", "gan", "vertigan")  # folders that train networks
SLOW = {  # each takes a tenth of a second to a second, and memory
    "matplotlib", "scipy.interpolate", "scipy.optimize", "scipy.stats", "sklearn", "sqlalchemy",
}  # fmt: skip


def test_optional_packages_are_imported_where_they_are_used():
    """TenSEAL, Ray and torch, not at the top of a module; but torch where networks are."""
    for path in modules("flwr_vertical") + modules("strategies"):
        top = set()
        for node in nodes(path)[0].body:
            if isinstance(node, ast.Import):
                top |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                top.add(str(node.module).split(".")[0])
        deep = path.parent.name in TORCH and path.name != "__init__.py"
        assert not top & OPTIONAL - ({"torch"} if deep else set()), path


def printed(code, *arguments):
    """Run code in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_strategy_s_party_half_imports_no_slow_package():
    """A node imports the strategy's module whole, for each run, and often for each message."""
    light = [
        name
        for name, target in BUILTIN.items()
        if not set(target.split(":")[0].split(".")) & set(TORCH)
    ]
    lines = printed(
        "import sys, flwr_vertical, strategies, apps.client_app\n"
        "strategies.register_all()\n"
        f"for name in {light}:\n"
        "    flwr_vertical.load_strategy(name)\n"
        f"    if found := {SLOW} & set(sys.modules): sys.exit(f'{{name}}: {{found}}')\n"
    )
    assert not lines
    assert len(light) > 20


def test_importing_the_core_needs_no_optional_package():
    lines = printed(
        "import sys; from tests.kit.blocked import Absent\n"
        f"sys.meta_path.insert(0, Absent({sorted(OPTIONAL)}))\n"
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
    # Only a strategy that says so in its name's place may need one.
    deep = [name for name, target in BUILTIN.items() if target.split(":")[0].split(".")[1] in TORCH]
    assert set(lines.replace("needs torch: ", "").split()) <= set(deep)


def test_a_process_imports_no_more_than_it_needs_even_if_it_is_there(tmp_path):
    """Nor slow packages of which most messages have no need: a process may serve one only."""
    table = pd.DataFrame({"x": np.arange(200.0) % 10})
    labels = (table["x"] + np.arange(200.0) % 7).rename("y")
    glm = simulate(VerticalGLM(), {"a": table, "b": table**2}, labels)
    lines = printed(
        "import sys, apps.client_app, apps.server_app, flwr_vertical, strategies.fknn\n"
        "import flwr_vertical.results\n"
        "strategies.register_all(); flwr_vertical.available_strategies()\n"
        f"found = set(sys.modules) & {OPTIONAL | SLOW}\n"
        "if found: sys.exit(repr(found))\n"
        "import numpy as np, pandas as pd\n"
        "tables = {n: pd.DataFrame({n: np.arange(9.0)}) for n in 'ab'}\n"
        "tables['a'].iloc[3] = np.nan\n"
        "flwr_vertical.simulate(strategies.fknn.FKNN(n_neighbors=2), tables)\n"
        "assert 'torch' not in sys.modules\n"
        # A model is read where its strategy has not been imported.
        "assert not any(name.startswith('strategies.linear') for name in sys.modules)\n"
        "print(type(flwr_vertical.Result.load(sys.argv[1]).model).__name__)",
        glm.save(tmp_path / "run"),
    )
    assert lines.strip() == "GLMModel"


def test_every_strategy_states_what_it_discloses_beside_its_code():
    """In its class, or in one above it that is a method's, too; the core's states nothing."""
    register_all()
    for name in BUILTIN:
        states = next(cls for cls in load_strategy(name).__mro__ if "disclosure" in vars(cls))
        assert states.__module__.startswith("strategies."), name
        assert states.disclosure, name
