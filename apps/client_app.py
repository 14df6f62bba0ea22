"""The Flower ``ClientApp``: serves the party half of whichever strategy the run config names."""

from functools import lru_cache
from typing import Any

from flwr.app import Context

from flwr_vertical import Strategy, make_strategy, party_app
from flwr_vertical.node.policy_check import NodeTypes
from flwr_vertical.policy.requirements import asked_by
from flwr_vertical.policy.run_request import RunRequest, check_request
from strategies import register_all

from .node_files import with_node_config
from .settings import AppSettings
from .storage import AppStorage


def pick(context: Context) -> NodeTypes:
    """Return what a node runs of the strategy named in the run config, and what it asks for."""
    if context.run_config.get("strategy") == "pipeline":
        from strategies.pipeline.stages import methods_of

        # Before the strategies of its stages are imported; more is asked once they are.
        asked = RunRequest(stages=tuple(methods_of(context.run_config.get("pipeline.stages", ""))))
        check_request(storage.in_words(context), storage.policy(context), asked)
    strategy = _strategy(tuple(sorted(context.run_config.items())))
    if storage.role(context) != "arbiter":
        strategy = strategy.at_node(lambda: storage.load_model(context))
    return NodeTypes(
        strategy.party,
        strategy.arbiter,
        asked=asked_by(strategy, str(context.run_config["strategy"])),
        protocol=strategy.protocol_of_run(),
    )


@lru_cache(maxsize=8)
def _strategy(items: tuple[tuple[str, Any], ...]) -> Strategy:
    """Check settings and packages on this node, too, once a run."""
    register_all()
    config = dict(items)
    strategy = make_strategy(AppSettings.from_config(config).strategy, config)
    strategy.check_requirements()
    return strategy


storage = AppStorage()
app = party_app(pick, storage=storage, mods=[with_node_config])
