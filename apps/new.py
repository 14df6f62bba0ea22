"""``flwr-vertical new``: write a small Flower app that imports this package.

What is written runs as it is, on demonstration data. Presets are those of this package; node
configs and policies are drafts, one for each party, which their owners fill in.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.storage import check_name
from flwr_vertical.policy.requirements import asked_by
from flwr_vertical.policy.run_request import RunRequest, needed_keys
from flwr_vertical.registry import load_strategy, make_strategy
from flwr_vertical.server import RunSettings
from flwr_vertical.settings.toml import flat, read_items, toml_value
from flwr_vertical.strategy import Strategy
from flwr_vertical.version import __version__
from strategies import register_all

from .settings import AppSettings, DemoSettings

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_PRESETS = Path(__file__).parent
_FLWR = "flwr[simulation]>=1.41,<1.43"
_NODES = " --federation-config 'num-supernodes=3'"  # of presets, which name no parties


def write_app(folder: Path, strategy: str, parties: Sequence[str]) -> str:
    """Write the app and return what to do next."""
    folder = folder.expanduser().absolute()
    if not _NAME.fullmatch(folder.name):
        raise ConfigError(
            f"{folder.name!r} cannot be an app's name; expected at most 32 letters, digits and "
            "hyphens, beginning with a letter"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already, and nothing is overwritten; name another one")
    names = [name.strip() for name in parties]
    for name in names:
        if check_name(name).lower() == "arbiter":
            raise ConfigError("no party can be called 'arbiter', the name of another role")
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"--parties {','.join(parties)!r}: expected different names")
    for path, text in app_files(folder.name, strategy, names).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return f"written: {folder}\nnext: cd {folder.name} && flwr-vertical run ."


def app_files(name: str, strategy: str, parties: Sequence[str]) -> dict[str, str]:
    """Return the files of an app by their paths; the parameters are those of `write_app`."""
    register_all()
    method = load_strategy(strategy)
    preset = _PRESETS / f"{method.name}.toml"
    if not method.demo or not preset.is_file():
        raise ConfigError(
            f"the strategy {strategy!r} has no demonstration to begin with: it builds on another "
            "run, or is not part of this package; take the one it builds on, or 'fknn'"
        )
    settings = flat(read_items([str(preset)]))
    config = _config(method, settings) | {"parties": ",".join(parties)}
    chosen = make_strategy(method.name, config)
    package = name.replace("-", "_").lower()
    shown = preset.read_text().replace("run . --run-config apps/", "run . --run-config presets/")
    shown = shown.replace(_NODES, "")  # the app's parties say how many there are
    files = {
        "pyproject.toml": _project(name, package, config),
        "README.md": _README.format(
            name=name,
            strategy=method.name,
            starts="\n".join(_start(node) for node in _nodes(parties, chosen)),
        ),
        "LICENSE": _LICENSE.format(name=name),
        ".gitignore": ".venv/\n__pycache__/\n*.fab\n",
        f"{package}/__init__.py": f'"""The app {name}."""\n',
        f"{package}/server_app.py": _SERVER,
        f"{package}/client_app.py": _CLIENT,
        f"presets/{method.name}.toml": shown,
    }
    for node in _nodes(parties, chosen):
        role = "arbiter" if node == "arbiter" else "party"
        text = _ARBITER if role == "arbiter" else _PARTY
        files[f"nodes/{node}/node.toml"] = text.format(name=node)
        files[f"nodes/{node}/policy.toml"] = _policy(node, chosen, config, len(parties))
    return files


def _nodes(parties: Sequence[str], strategy: Strategy) -> list[str]:
    return [*parties, *(["arbiter"] if strategy.needs_arbiter else [])]


def _start(node: str) -> str:
    place = f"nodes/{node}/node.toml"
    return f'flwr-vertical supernode --insecure --superlink HOST:9391 --node-config "{place}"'


def _config(method: type[Strategy], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the app's run config: the keys of every run, and those of one strategy.

    The other strategies are not loaded: they may need packages that are not installed.
    """
    config = AppSettings.config_defaults() | RunSettings.config_defaults()
    config |= DemoSettings.config_defaults("demo.")
    return config | method.config_defaults(f"{method.name}.") | dict(preset)


def _project(name: str, package: str, config: Mapping[str, Any]) -> str:
    lines = [
        _PROJECT.format(name=name, package=package, version=__version__, flwr=_FLWR),
        "[tool.flwr.app.config]\n",
    ]
    table = ""
    for key, value in config.items():  # those of one table follow each other
        head, _, rest = key.rpartition(".")
        if head != table:
            lines.append(f"\n[tool.flwr.app.config.{head}]\n")
            table = head
        lines.append(f"{rest} = {toml_value(value)}\n")
    return "".join(lines)


def _policy(node: str, strategy: Strategy, config: Mapping[str, Any], n_parties: int) -> str:
    """Return a policy that agrees to runs of this strategy and to nothing that it need not."""
    asked = asked_by(strategy)
    request = RunRequest.of(config, "", exchanges=asked.exchanges, epsilon=asked.epsilon)
    keys: dict[str, Any] = {
        "strategies": strategy.name,
        "aggregations": str(config["aggregation"]),
        "min-parties": min(2, n_parties),
    }
    if node != "arbiter":
        keys["alignments"] = str(config["alignment"])
        keys |= {k.removeprefix("policy."): v for k, v in needed_keys(request).items()}
    lines = [_POLICY]
    for key, value in keys.items():
        text = toml_value(",".join(value) if isinstance(value, tuple | list) else value)
        lines.append(f"{key} = {text}\n")
    return "".join(lines)


_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Vertical federated learning on incomplete data"
requires-python = ">=3.11"
license = {{ file = "LICENSE" }}
dependencies = ["{flwr}", "flwr-vertical[simulation]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "{name}"  # your account, if you publish the app on Flower Hub
fab-format-version = 1
flwr-version-target = "1.41.0"
# Node configs and policies belong to their nodes; they do not travel with the app.
fab-include = ["{package}/**/*.py", "presets/**/*.toml", "README.md", "LICENSE"]

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# What a run does unless --run-config says otherwise; `flwr-vertical strategies NAME` explains.
"""

_SERVER = '''\
"""The ServerApp: runs the strategy that the run config names."""

from flwr_vertical.apps import server_app

app = server_app.app
'''

_CLIENT = '''\
"""The ClientApp: serves a node's half of the strategy that the run config names."""

from flwr_vertical.apps import client_app

app = client_app.app
'''

_PARTY = """\
# Node config of the party {name}. Paths are those of its own machine.
party = "{name}"
data = "nodes/{name}/table.csv"      # CSV, TSV or Parquet; the first column has the sample IDs
output = "nodes/{name}/results"      # results, checkpoints and the privacy ledger
policy = "nodes/{name}/policy.toml"  # what this node agrees to
"""

_ARBITER = """\
# Node config of the arbiter, which has no data and opens encrypted sums.
party = "{name}"
role = "arbiter"
policy = "nodes/{name}/policy.toml"  # what this node agrees to
"""

_POLICY = """\
# What this node agrees to; its owner decides. In words, and against a run:
#     flwr-vertical policy --file FILE
#     flwr-vertical policy --node-config NODE.toml --run-config PRESET.toml
"""

_LICENSE = """\
Copyright: the authors of {name}

Licensed under the Apache License, Version 2.0 (the "License"); you may not use this app except in
compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is
distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or
implied. See the License for the specific language governing permissions and limitations under the
License.
"""

_README = """\
# {name}

A Flower app for vertical federated learning on incomplete data, made by `flwr-vertical new`.

## Try it on this machine

```bash
pip install 'flwr-vertical[simulation]'
flwr-vertical run .
```

The nodes are simulated, one for each of `parties` in `pyproject.toml`, and share demonstration
data. The run uses the packages that are installed. `flwr-vertical stop` ends what the first run
leaves running.

`flwr-vertical strategies {strategy}` explains the settings. Change them in `pyproject.toml`, in
`presets/{strategy}.toml`, or for one run with `--run-config '{strategy}.KEY=VALUE'`.

On tables of your own, fill in `nodes/NAME/node.toml` and `policy.toml` and run it so:

```bash
flwr-vertical check --nodes nodes
flwr-vertical run . --nodes nodes
```

## Run it on real nodes

Each party fills in `nodes/NAME/node.toml` and `policy.toml` on its own machine, and starts
its SuperNode in this folder. Two on one machine need different `--port`.

```bash
flower-superlink --insecure --port 9391
{starts}
flwr-vertical run . my-federation --run-config presets/{strategy}.toml \\
    --run-config 'run-name="first"'
```

`my-federation` is a table `[superlink.my-federation]` in Flower's `config.toml`. `--insecure` is
for a first try: use TLS and node authentication with real data.

## Give it to others

`flwr build` writes one file of the app, without node configs. It runs on its own: Flower installs
the dependencies of `pyproject.toml` for each run, `flwr-vertical` among them. For Flower Hub, set
`publisher` to your account and choose the LICENSE; then `flwr login` and `flwr app publish .`.
"""
