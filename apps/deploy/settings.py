"""The run config of a run on a trial federation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_vertical import Strategy, load_strategy
from flwr_vertical.errors import ConfigError
from flwr_vertical.policy.reading import read_policy
from flwr_vertical.policy.requirements import config_keys, for_arbiter
from flwr_vertical.policy.run_request import needed_keys
from flwr_vertical.settings.toml import read_items
from strategies import BUILTIN, register_all

from ..cli.policy import request_of
from .folder import ARBITER, Plan, label_file

ROOT = Path(__file__).parents[2]


def run_config(
    home: Path,
    plan: Plan,
    strategy: str,
    run_name: str,
    settings: Sequence[str] = (),
    labels: str = "",
    label_column: str = "",
) -> dict[str, Any]:
    """Run config of a strategy: its defaults, this federation's files, then settings."""
    register_all()
    method = load_strategy(strategy)
    config = {} if strategy not in BUILTIN else method.config_defaults(f"{strategy}.")
    config |= {
        "strategy": strategy,
        "run-name": run_name,
        "parties": ",".join(plan.parties),
        "min-nodes": len(plan.nodes),
        "patience": 120.0,
        "output": str(home / "server" / "results"),
        "labels": "",
    }
    if labels:
        if not Path(labels).is_file():
            raise ConfigError(f"there is no file {labels}")
        config |= {"labels": labels, "label-column": label_column}
    elif found := _labels(home, plan, method):
        config |= {"labels": found, "label-column": plan.label_column}
    return config | read_items(settings)


def policies_for(plan: Plan, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what the nodes of a federation must state to take part in runs."""
    register_all()
    found: dict[str, dict[str, Any]] = {}
    for given in runs:
        config = {"parties": ",".join(plan.parties), **read_items([given])}
        for node in plan.nodes:
            request = request_of(config, str(ROOT), "" if node == ARBITER else node)
            if node == ARBITER:
                request = for_arbiter(request)
            keys = found.setdefault(node, {})
            keys |= config_keys(needed_keys(request, read_policy(f"node {node!r}", keys)))
    return {node: keys for node, keys in found.items() if keys}


def _labels(home: Path, plan: Plan, strategy: type[Strategy]) -> str:
    """Return the label file of a federation, if the strategy has a use for it."""
    if not (strategy.needs_labels or strategy.uses_labels):
        return ""
    return plan.labels or ("" if plan.own_data else str(label_file(home)))
