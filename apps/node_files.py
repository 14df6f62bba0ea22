"""Node configs from files, for the nodes of a simulation, which have none of their own."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from flwr_vertical.channel.background import in_ray_worker
from flwr_vertical.errors import ConfigError
from flwr_vertical.node.config_files import ARBITER, read_node_configs
from flwr_vertical.server import RunSettings

_OF_SIMULATIONS = {"partition-id", "num-partitions"}  # all that such a node is told


def with_node_config(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Give a simulated node the node config that the run config names for it; a mod of Flower's.

    A run config comes from a server, which must not point a node at a file. So only a worker of
    the Simulation Runtime reads one, for a node that has no node config of its own; any other
    node takes part in no such run.
    """
    folder = str(context.run_config.get("nodes", ""))
    if not folder:
        return call_next(message, context)
    if set(context.node_config) != _OF_SIMULATIONS or not in_ray_worker():
        raise ConfigError(
            "the run config has 'nodes', which is for simulations: this node reads no node config "
            "that a server names; leave 'nodes' away"
        )
    start = str(context.run_config.get("nodes-start", ""))
    if start:
        os.chdir(start)  # this worker is the simulation's own
    config = config_of(
        folder, str(context.run_config.get("parties", "")), int(context.node_config["partition-id"])
    )
    own = Context(
        context.run_id, context.node_id, config, context.state, context.run_config,
        context.series_id,
    )  # fmt: skip
    return call_next(message, own)


@lru_cache(maxsize=64)
def config_of(folder: str, parties: str, number: int) -> dict[str, Any]:
    """Return the node config of one of the nodes: the parties in their order, then the arbiter."""
    configs = read_node_configs(Path(folder))
    names = [*(RunSettings.from_config({"parties": parties}).parties or ()), ARBITER]
    found: dict[str, Any] = configs[names[number]]
    return found
