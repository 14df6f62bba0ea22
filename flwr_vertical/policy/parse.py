"""Policies of nodes as a Python caller states them."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr_vertical.errors import ConfigError
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.record import PREFIX, Policy

Stated = Policy | Mapping[str, Any]
"""A policy, or its keys as in a node config, with or without the prefix."""


def policies_by_node(given: Stated, nodes: Sequence[str]) -> dict[str, Policy]:
    """Return the policy of each node."""
    if isinstance(given, Policy):
        return dict.fromkeys(nodes, given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            "policy must be a Policy, its keys as a dict such as {'min-rows': 200}, or a dict of "
            f"node to one of these, got {type(given).__name__}"
        )
    by_node = [isinstance(value, Policy | Mapping) for value in given.values()]
    if not any(by_node):
        return {name: _one(f"party {name!r}", given) for name in nodes}
    unknown = sorted(set(map(str, given)) - set(nodes))
    if unknown or not all(by_node):
        wrong = unknown or sorted(k for k, is_one in zip(given, by_node, strict=True) if not is_one)
        raise ConfigError(
            f"policy names {wrong}, which are no nodes with a policy; the nodes are {list(nodes)}"
        )
    return {name: _one(f"party {name!r}", given.get(name, {})) for name in nodes}


def _one(who: str, stated: Stated) -> Policy:
    if isinstance(stated, Policy):
        return stated
    keys = {PREFIX + str(key).removeprefix(PREFIX): value for key, value in stated.items()}
    return read_policy(who, keys)
