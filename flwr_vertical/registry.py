"""Find strategies by name: entry points, names registered in this process, or ``module:Class``."""

import importlib
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.strategy import Strategy

GROUP = "flwr_vertical.strategies"

_REGISTERED: dict[str, str] = {}


def register_strategy(name: str, target: str) -> None:
    """Make a strategy available by name in this process.

    Parameters
    ----------
    name : str
        Short name.
    target : str
        ``"module:Class"``.
    """
    _REGISTERED[name] = target


def available_strategies() -> dict[str, str]:
    """Return name and target of every strategy that can be used by name."""
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    return dict(sorted((installed | _REGISTERED).items()))


def load_strategy(name: str) -> type[Strategy]:
    """Return a strategy class by its name or as ``"module:Class"``.

    Raises
    ------
    ConfigError
        If there is no such strategy (listing those there are) or it is not a `Strategy`.
    """
    known = available_strategies()
    target = known.get(name, name)
    if ":" not in target:
        raise ConfigError(
            f"unknown strategy {name!r}; expected one of {list(known)} or 'module:Class'"
        )
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"strategy {name!r}: cannot load {target!r} ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(f"strategy {name!r}: {target!r} is not a subclass of Strategy")
    return found


def make_strategy(name: str, run_config: Mapping[str, Any]) -> Strategy:
    """Make a strategy with the settings that a run config holds in the table of its name.

    Flower delivers nested tables flat: ``fknn.n-neighbors = 5`` becomes ``n_neighbors=5``.

    Raises
    ------
    ConfigError
        If a setting is unknown, listing the valid ones.
    """
    strategy = load_strategy(name)
    prefix = f"{getattr(strategy, 'name', name)}."
    settings = {
        key.removeprefix(prefix).replace("-", "_"): value
        for key, value in run_config.items()
        if key.startswith(prefix)
    }
    valid = [p for p in inspect.signature(strategy).parameters if p != "self"]
    unknown = sorted(set(settings) - set(valid))
    if unknown:
        shown = [f"{prefix}{key.replace('_', '-')}" for key in valid]
        raise ConfigError(f"strategy {name!r} has no settings {unknown}; it has {shown}")
    return strategy(**settings)
