"""What a strategy asks of nodes, and the keys by which the nodes of a federation would agree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr_vertical.policy.record import ANY, PREFIX, ROW_RULES, Policy, key_of, stated, text_of
from flwr_vertical.policy.run_request import RunRequest, needed_keys
from flwr_vertical.settings import settings_of

ARBITER = "arbiter"
"""Stands for the arbiter among the names of nodes."""

UNDECLARED = "undeclared"
"""The exchange that nodes agree to which run a strategy without a protocol."""

_OPEN = {
    "strategies": (ANY,),
    "aggregations": (ANY,),
    "alignments": (ANY,),
    "exchanges": (ANY,),
    "min_parties": 1,
    "max_epsilon": None,
}


def asked_by(strategy: Any, name: str = "") -> RunRequest:
    """Return what a strategy asks of nodes by its settings."""
    epsilon = getattr(strategy, "epsilon", None)
    asked = exchanges_of(strategy)
    # A class that a policy names by its module is agreed to as it is.
    if type(strategy).protocol is None and ":" not in name:
        asked = (*asked, UNDECLARED)
    stages = getattr(strategy, "stages_asked", ())
    return RunRequest(name or strategy.name, exchanges=asked, epsilon=epsilon, stages=stages)


def exchanges_of(strategy: Any) -> tuple[str, ...]:
    """Return the exchanges that a strategy asks consent for, by its settings.

    A setting ``exchange`` other than the default names one; a strategy that decides otherwise has
    an attribute ``exchanges_asked``.
    """
    asked = getattr(strategy, "exchanges_asked", None)
    if asked is not None:
        return tuple(asked)
    for item in settings_of(type(strategy)) if not strategy.by_hand else ():
        if item.name == "exchange" and strategy.exchange != item.default:
            return (str(strategy.exchange),)
    return ()


def open_to(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a policy by which every consent for a run is given.

    It is for nodes that have no owner to ask: tables in memory, and demonstration data, which are
    public. The rules on rows are not among them; they hold there as well.
    """
    named = [str(run_config.get(key, "")) for key in ("strategy", "alignment")]
    return {
        **_OPEN,
        "modules": tuple(name for name in named if ":" in name),
        "labels": str(run_config.get("label-column", "")),
    }


def needed_by_node(
    request: RunRequest,
    parties: Sequence[str],
    *,
    labels: Mapping[str, str] | None = None,
    policies: Mapping[str, Policy] | None = None,
    arbiter: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return which keys the nodes of a federation would need for a run by default."""
    request = replace(request, n_parties=len(parties))
    found = {}
    for name in parties:
        keys = needed_keys(replace(request, label_column=(labels or {}).get(name, "")))
        rules = stated((policies or {}).get(name, Policy()))
        rules = {PREFIX + k: v for k, v in rules.items() if k.replace("-", "_") in ROW_RULES}
        found[name] = config_keys({**keys, **rules})
    if arbiter:
        found[ARBITER] = config_keys(needed_keys(for_arbiter(request)))
    return {name: keys for name, keys in found.items() if keys}


def for_arbiter(request: RunRequest) -> RunRequest:
    """Return what of a request concerns an arbiter, which has no samples and no columns."""
    return replace(request, alignment="", label_column="", exchanges=(), epsilon=None)


def config_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a policy as a node config takes them: lists become texts with commas."""
    return {
        key: ",".join(map(str, value)) if isinstance(value, tuple | list) else value
        for key, value in keys.items()
    }


def as_node_config(policy: Policy) -> dict[str, Any]:
    """Return a whole policy as keys of a node config, so that no default stands in for any."""
    values = {key_of(item.name): getattr(policy, item.name) for item in settings_of(Policy)}
    return config_keys({key: value for key, value in values.items() if value is not None})


def lines_of(keys: Mapping[str, Any]) -> list[str]:
    """Return keys of a node config, ready to paste into ``--node-config`` or a TOML file."""
    return [f"{key}={text_of(value)}" for key, value in keys.items()]
