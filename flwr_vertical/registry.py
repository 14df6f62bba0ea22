"""Find strategies by name: entry points, names registered in this process, or ``module:Class``."""

import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from flwr_vertical.alignment.registry import alignment_steps
from flwr_vertical.errors import ConfigError
from flwr_vertical.log import logger
from flwr_vertical.node.config import NodeKey, find_keys_by
from flwr_vertical.node.party import Party
from flwr_vertical.node.steps import function_of, node_keys_of, steps_of
from flwr_vertical.optional import how_to_install
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.arguments import arguments_of
from flwr_vertical.protocol.declaration import Protocol
from flwr_vertical.protocol.messages import FAREWELL, HELLO, RESTORE, SNAPSHOT
from flwr_vertical.results.model import find_strategies_by
from flwr_vertical.settings import nearest, settings_of
from flwr_vertical.strategy import Strategy

GROUP = "flwr_vertical.strategies"
SETTINGS = "settings"
"""Key of the run config with a strategy's settings as JSON text; Flower refuses unknown keys."""

_REGISTERED: dict[str, str] = {}
_NAME = re.compile(r"[\w-]+")  # It begins keys of run configs and names files

_LABELS = [function_of(Party, name) for name in steps_of(Party)]
_RESERVED = {HELLO, FAREWELL, SNAPSHOT, RESTORE, *steps_of(Party)}.union(
    *map(steps_of, alignment_steps(None))
)
"""Steps that every party has beside those of a strategy."""

_PREDICT = "'predict', whatever fitted the model"
REMOVED: dict[str, str] = {
    f"{fit}-predict": _PREDICT for fit in ("vfem", "false-vfl", "split", "gbdt", "forest")
} | {"lr": "strategy 'glm' with family='binomial' and penalty='ridge' (l2 as before)"}
"""Strategies of earlier versions: what to use now."""


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
    places = tuple((place, _changed(place)) for place in sys.path)
    return dict(sorted((_installed(places) | _REGISTERED).items()))


@lru_cache(maxsize=4)
def _installed(places: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Return the entry points of all packages; to read them takes tens of milliseconds.

    Shapes: places (str, int): where Python looks for packages, and when these places changed last:
    a package that is installed later is found.
    """
    return {point.name: point.value for point in entry_points(group=GROUP)}


def _changed(place: str) -> int:
    """Return when a folder or file changed last, in nanoseconds; 0 if it is not there."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


def load_strategy(name: str) -> type[Strategy]:
    """Return a strategy class by its name or as ``"module:Class"``.

    Raises
    ------
    ConfigError
        If there is no such strategy (listing those there are), its module cannot be imported, or
        it is not a `Strategy`.
    """
    known = available_strategies()
    target = known.get(name, name)
    if ":" not in target:
        raise ConfigError(
            f"unknown strategy {name!r}{nearest(name, known, REMOVED)}; expected one of "
            f"{list(known)} or 'module:Class'"
        )
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of somebody else's raises
        raise ConfigError(f"strategy {name!r}: {_why(target, module, error)}") from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(f"strategy {name!r}: {target!r} is not a subclass of Strategy")
    check_declaration(found, f"strategy {name!r}: {target!r}")
    return found


def check_declaration(strategy: type[Strategy], who: str) -> None:
    """Refuse a class that does not say what it is, or how its steps' arguments are checked."""
    lacking = [attribute for attribute in ("name", "party") if not hasattr(strategy, attribute)]
    if lacking:
        raise ConfigError(f"{who} does not say its {' and '.join(lacking)}")
    name, party, protocol = strategy.name, strategy.party, strategy.protocol
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigError(f"{who} has name = {name!r}, expected letters, digits, - and _")
    if not (isinstance(party, type) and issubclass(party, Party)):
        raise ConfigError(f"{who} has party = {party!r}, expected a subclass of Party")
    for half in (party, strategy.arbiter):
        own = {name for name in steps_of(half) if function_of(half, name) not in _LABELS}
        if taken := sorted(own & _RESERVED):
            raise ConfigError(
                f"{who}: {half.__name__} has the steps {taken}, which are names of the library's "
                "own steps, and would be taken in their place or never; rename them"
            )
    if protocol is None:
        return
    if not isinstance(protocol, Protocol):
        raise ConfigError(f"{who} has protocol = {protocol!r}, expected Protocol(Round(...), ...)")
    for step in protocol.steps:
        if (function := function_of(party, step)) is None:
            continue  # of the arbiter, or of products
        if bare := arguments_of(function).unchecked:
            raise ConfigError(
                f"{who}: step {step!r} takes {bare} of any type, so nothing of what a server sends "
                "is checked; annotate each, such as scale: Annotated[float, Within(0, 100)]"
            )


def _why(target: str, module: str, error: Exception) -> str:
    """Say why a module cannot be loaded, and what to do."""
    top = module.partition(".")[0]
    if isinstance(error, ImportError | AttributeError) and (shadow := _shadowing(top)):
        return _renaming(shadow, top)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name != top:
        missing = error.name.partition(".")[0]
        if missing != top:
            return f"{target!r} {how_to_install([missing])}"
    kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
    return f"cannot load {target!r} ({kind}{error})"


def _renaming(shadow: str, top: str) -> str:
    return (
        f"{shadow} has the name of the package {top!r} and is found before it; rename it, for "
        f"instance to 'my_{top}', or start Python elsewhere"
    )


def node_keys() -> list[NodeKey]:
    """Return the keys of the node config that the available strategies read, beside the core's."""
    found: list[NodeKey] = []
    broken: dict[str, Exception] = {}
    for name in available_strategies():
        try:
            strategy = load_strategy(name)
        except Exception as error:  # a broken strategy must not stop the runs of others
            broken[name] = error
            continue
        found += [*node_keys_of(strategy.party), *node_keys_of(strategy.arbiter)]
    if broken:
        names, first = ", ".join(broken), next(iter(broken.values()))
        logger.warning("keys of a node config that only %s read are unknown: %s", names, first)
    return found


find_keys_by(node_keys)


def _shadowing(top: str) -> str | None:
    """Return the path of a folder or file that hides the package of that name, if one does."""
    own = Path(__file__).resolve().parents[1] / top  # built-in strategies lie beside the core
    spec = importlib.util.find_spec(top)
    if spec is None or not own.is_dir():
        return None
    places = list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
    if any(Path(place).resolve() == own for place in places) or not places:
        return None
    return f"{'the folder' if Path(places[0]).is_dir() else 'the file'} {places[0]}"


class _ShadowFinder:
    """Names the folder that hides a built-in module; asked last, when nothing has found it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise if `name` is a built-in strategy's module that something of its name hides."""
        top, _, rest = name.partition(".")
        own = Path(__file__).resolve().parents[1].joinpath(top, *rest.split("."))
        if top != "strategies" or not (own.is_dir() or own.with_suffix(".py").is_file()):
            return
        if rest and (shadow := _shadowing(top)):
            said = f"No module named {name!r}: {_renaming(shadow, top)}"
            raise ModuleNotFoundError(said, name=name)


sys.meta_path.append(_ShadowFinder)


def name_of(strategy: type[Strategy]) -> str:
    """Return what a run config would call a strategy: its name, or ``module:Class``."""
    target = available_strategies().get(strategy.name, "")
    module, _, attribute = target.partition(":")
    if module.partition(".")[0] == strategy.__module__.partition(".")[0]:
        importlib.import_module(module)  # a short path to the class, maybe not in use yet
    found = getattr(sys.modules.get(module), attribute, None) if attribute else None
    return strategy.name if found is strategy else f"{strategy.__module__}:{strategy.__qualname__}"


def own_settings(strategy: type[Strategy], run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run config holds for a strategy, by setting as it is spelt there.

    Flower delivers nested tables flat: ``fknn.n-neighbors = 5``. The JSON text ``settings`` is for
    strategies that have no table in the app's run config; it counts more than a table.
    """
    prefix = f"{strategy.name}."
    table = {key[len(prefix) :]: v for key, v in run_config.items() if key.startswith(prefix)}
    text = run_config.get(SETTINGS) or "{}"
    try:
        given = json.loads(str(text))
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(
            f"{SETTINGS} must be a JSON object as text, such as settings='{{\"scale\": 2.0}}', "
            f"got {text!r}"
        )
    names = {key.replace("_", "-") for key in given}
    return {key: v for key, v in table.items() if key.replace("_", "-") not in names} | given


def make_strategy(name: str, run_config: Mapping[str, Any]) -> Strategy:
    """Make a strategy with the settings that a run config holds for it; see `own_settings`.

    Raises
    ------
    ConfigError
        If a setting is unknown, listing the valid ones, or cannot be used.
    """
    strategy = load_strategy(name)
    given = {key.replace("-", "_"): v for key, v in own_settings(strategy, run_config).items()}
    valid = setting_names(strategy)
    unknown = sorted(set(given) - set(valid))
    if unknown:
        shown = [f"{strategy.name}.{key.replace('_', '-')}" for key in valid]
        gone = {f"{strategy.name}.{k.replace('_', '-')}": v for k, v in strategy.removed.items()}
        hint = nearest(f"{strategy.name}.{unknown[0].replace('_', '-')}", shown, gone)
        raise ConfigError(f"strategy {name!r} has no settings {unknown}{hint}; it has {shown}")
    return strategy(**given)


def setting_names(strategy: type[Strategy]) -> list[str]:
    """Return the names of a strategy's settings, in the order of its constructor."""
    if not strategy.by_hand:
        return [item.name for item in settings_of(strategy)]
    return [name for name in inspect.signature(strategy).parameters if name != "self"]


def predictions_of(name: str) -> type[Predictions]:
    """Return how new rows are predicted with models of a strategy."""
    found = load_strategy(name).predictions
    if found is None:
        raise ConfigError(f"models of strategy {name!r} do not predict new rows")
    return found


def _import_strategy(name: str) -> None:
    """Import a strategy so that its models can be read; never ``module:Class``."""
    if name not in available_strategies():
        raise ConfigError(f"no strategy {name!r} is installed or registered here")
    load_strategy(name)


find_strategies_by(_import_strategy)
