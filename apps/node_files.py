"""Node configs from files, for the nodes of a simulation, which have none of their own."""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from flwr_vertical.channel.background import in_ray_worker
from flwr_vertical.node.config_files import ARBITER, read_node_configs
from flwr_vertical.server import RunSettings

_OF_SIMULATIONS = {"partition-id", "num-partitions"}  # all that such a node is told


def with_node_config(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Give a simulated node the node config that the run config names for it; a mod of Flower's.

    A run config comes from a server, which must not point a node at a file. So only a worker of
    the Simulation Runtime reads one, for a node that has no node config of its own; any other
    node keeps its own, and `AppStorage` has it take part in no such run.
    """
    run_config = dict(context.run_config)
    folder, start = (str(run_config.pop(key, "")) for key in ("nodes", "nodes-start"))
    simulated = set(context.node_config) == _OF_SIMULATIONS and in_ray_worker()
    if not folder or not simulated:
        return call_next(message, context)
    if start:
        os.chdir(start)  # this worker is the simulation's own
    number = int(context.node_config["partition-id"])
    config = config_of(folder, str(run_config.get("parties", "")), number)
    own = Context(
        context.run_id, context.node_id, config, context.state, run_config, context.series_id
    )
    return call_next(message, own)


@lru_cache(maxsize=64)
def config_of(folder: str, parties: str, number: int) -> dict[str, Any]:
    """Return the node config of one of the nodes: the parties in their order, then the arbiter."""
    configs = read_node_configs(Path(folder))
    names = [*(RunSettings.from_config({"parties": parties}).parties or ()), ARBITER]
    found: dict[str, Any] = configs[names[number]]
    return found
