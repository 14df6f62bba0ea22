"""Check the run config of an app before Flower is started, and write it as Flower takes it."""

import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.registry import (
    SETTINGS,
    available_strategies,
    load_strategy,
    make_strategy,
    own_settings,
    setting_names,
)
from flwr_vertical.server.settings import RunSettings
from flwr_vertical.settings import nearest
from flwr_vertical.settings.secrets import refuse_secrets
from flwr_vertical.settings.toml import flat
from flwr_vertical.strategy import Strategy

_FILES = ("labels", "test-labels", "output")  # of the server, in the run config
_NODES = "num-supernodes"


def app_defaults(app: Path) -> dict[str, Any]:
    """Return the run config of an app's ``pyproject.toml``, flat."""
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"{str(app)!r} is no Flower app: there is no pyproject.toml in it; give the folder of "
            "the app, for instance a clone of this repository"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{app / 'pyproject.toml'} cannot be read: {error}") from error
    found = project.get("tool", {}).get("flwr", {}).get("app", {}).get("config", {})
    return flat(found)


def checked_config(
    defaults: Mapping[str, Any], given: Mapping[str, Any], here: bool = True
) -> dict[str, Any]:
    """Return the settings of a run as Flower takes them, or say what is wrong with them.

    Flower knows the keys of the app alone, and refuses others without a word on which. So keys of
    the table of a strategy that the app has none for go into its text key ``settings``.
    """
    refuse_secrets(given)
    strategy = _strategy(defaults, given, here)
    name = None if strategy is None else strategy.name
    found, own = {}, {}
    for key, value in given.items():
        table, dot, rest = key.partition(".")
        if key in defaults:
            if table != name:  # a strategy checks its own, which may be of several types
                _check_type(key, value, defaults[key])
            found[key] = value
        elif dot and table == name and SETTINGS in defaults:
            own[rest] = value
        else:
            _refuse(key, defaults, strategy)
    if strategy is None:
        return found
    if own:
        found[SETTINGS] = json.dumps(
            own | own_settings(strategy, {SETTINGS: given.get(SETTINGS, "")})
        )
    config = {**defaults, **found}
    make_strategy(str(config["strategy"]), config)
    if here:
        strategy.check_requirements()
    RunSettings.from_config(config)
    return found


def checked_here(
    defaults: Mapping[str, Any], settings: Mapping[str, Any], federation: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Check a simulation of this package's app as its server would, a minute later."""
    from ..server_app import check_here  # brings the whole app's imports
    from ..settings import AppSettings

    found = dict(settings)
    if not AppSettings.config_defaults().keys() <= defaults.keys():
        return found, []  # another app, whose keys mean what it likes
    for key in _FILES:
        path = str({**defaults, **found}[key])
        if path not in ("", "demo"):
            found[key] = str(Path(path).expanduser().absolute())
    needed = check_here({**defaults, **found})
    stated = federation.get(_NODES)
    if stated is None:
        return found, [f"{_NODES}={needed}"] if {**defaults, **found}["parties"] else []
    if isinstance(stated, int) and stated < needed:
        raise ConfigError(
            f"the run waits for {needed} nodes, its parties and the arbiter where it needs one, "
            f"and --federation-config has {_NODES}={stated}; state {needed}, or leave it away"
        )
    return found, []


def _strategy(
    defaults: Mapping[str, Any], given: Mapping[str, Any], here: bool
) -> type[Strategy] | None:
    """Return the strategy of a run; None for an app without, or if it is not installed here."""
    name = str(given.get("strategy", defaults.get("strategy", "")))
    if not name:
        return None
    try:
        return load_strategy(name)
    except ConfigError as error:
        installed = here and name in available_strategies()
        if isinstance(error.__cause__, ModuleNotFoundError) and not installed:
            print(f"settings are not checked here: {error}", file=sys.stderr)
            return None
        raise


def _check_type(key: str, value: Any, default: Any) -> None:
    """Raise unless a value has the type that the app expects."""
    number = isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool)
    if type(value) is not type(default) and not number:
        kinds = {bool: "true or false", int: "an integer", float: "a number", str: "text in quotes"}
        raise ConfigError(f"{key} must be {kinds[type(default)]}, got {value!r}")


def _refuse(key: str, defaults: Mapping[str, Any], strategy: type[Strategy] | None) -> None:
    """Raise with the nearest valid key."""
    valid = list(defaults)
    gone = {}
    if strategy is not None:
        gone = {f"{strategy.name}.{k.replace('_', '-')}": v for k, v in strategy.removed.items()}
        valid += [f"{strategy.name}.{name.replace('_', '-')}" for name in setting_names(strategy)]
    table, dot, _ = key.partition(".")
    own = strategy.name if strategy is not None else ""
    others = set(available_strategies()) - {own}
    if table in others and not any(name.startswith(f"{table}.") for name in defaults):
        raise ConfigError(
            f"{key} is a setting of the strategy {table!r}, but strategy = {own!r} is run"
        )
    hint = nearest(key, valid, gone)
    listed = sorted(name for name in valid if name.startswith(f"{table}.")) if dot else []
    among = f"; {table!r} has {listed}" if listed else ""
    raise ConfigError(f"unknown setting {key!r}{hint}{among}")
