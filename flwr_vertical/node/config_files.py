"""Node configs of several nodes on one machine, from files: those that real nodes start with."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config import check_node_config
from flwr_vertical.node.storage import configured_name, configured_role
from flwr_vertical.settings.toml import flat

ARBITER = "arbiter"


def read_node_configs(nodes: Path | Mapping[str, Mapping[str, Any] | Path]) -> dict[str, Any]:
    """Read and check the node config of each node; flat, by the names of the parties, sorted.

    A folder has a file ``NAME.toml`` or ``NAME/node.toml`` for each node; a mapping has by party,
    and for ``"arbiter"``, the keys of a node config or its file. The arbiter's, which is made up if
    there is none, comes last. `ConfigError` if there is none, a file cannot be read, a key is one
    that nothing reads, or two nodes have the same name.
    """
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for where, config in _configs(nodes):
        name = node_name(where, config)
        if name in found:
            raise ConfigError(
                f"{where} and {found[name][0]} are both of {name!r}; give each node a name of its "
                "own ('party'); there is one arbiter at most"
            )
        check_node_config(where, config)
        found[name] = where, config
    _, arbiter = found.pop(ARBITER, ("", {"role": ARBITER}))
    if not found:
        raise ConfigError("the only node config is of an arbiter, which has no data; add a party")
    return {name: found[name][1] for name in sorted(found)} | {ARBITER: arbiter}


def node_name(where: str, config: Mapping[str, Any]) -> str:
    """Return the party's name, or ``"arbiter"``, as the node itself would."""
    context = context_of(config)
    try:
        return ARBITER if configured_role(context) == ARBITER else configured_name(context)
    except ConfigError as error:
        if "party" in config or "role" in config:
            raise ConfigError(f"{where}: {error}") from None
        raise ConfigError(f"{where} has no party name; put into it: party = 'bank'") from None


def context_of(config: Mapping[str, Any], run_config: Mapping[str, Any] | None = None) -> Context:
    """Return what Flower hands a node that has this node config."""
    return Context(0, 0, dict(config), RecordDict(), dict(run_config or {}))


def _configs(
    nodes: Path | Mapping[str, Mapping[str, Any] | Path],
) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(nodes, Mapping):
        for name, given in nodes.items():
            config = dict(given) if isinstance(given, Mapping) else _read(Path(given))
            config.setdefault(*(("role", ARBITER) if name == ARBITER else ("party", name)))
            if (own := node_name(f"the node config of {name!r}", config)) != name:
                raise ConfigError(f"the node config of {name!r} is of {own!r}; correct one of them")
            yield f"the node config of {name!r}", flat(config)
        return
    if not nodes.is_dir():
        raise ConfigError(
            f"{nodes} is no folder; expected one with NAME.toml or NAME/node.toml for each node"
        )
    files = sorted([*nodes.glob("*.toml"), *nodes.glob("*/node.toml")])
    if not files:
        raise ConfigError(
            f"{nodes} holds no node config; expected NAME.toml or NAME/node.toml for each node, as "
            "'flwr-vertical new' and 'flwr-vertical check TABLES --fix FOLDER' write them"
        )
    for path in files:
        yield str(path), _read(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return flat(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        hint = "" if path.suffix == ".toml" else f"; a table is stated as {{'data': '{path}'}}"
        raise ConfigError(f"{path} cannot be read as a node config, TOML: {error}{hint}") from error
