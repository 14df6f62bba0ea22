"""``flwr-vertical check``: what a run would meet in the tables of a node, before it starts."""

from .command import run_check
from .tables import CheckedTable, Checks, check_nodes, configs_of
from .trial import Trial, try_strategy

__all__ = [
    "CheckedTable",
    "Checks",
    "Trial",
    "check_nodes",
    "configs_of",
    "run_check",
    "try_strategy",
]
