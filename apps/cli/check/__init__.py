"""``flwr-vertical check``: what a run would meet in the tables of a node, before it starts."""

from .command import run
from .options import add_parser
from .tables import CheckedTable, Checks, check_nodes, configs_of
from .trial import Trial, try_strategy

__all__ = [
    "CheckedTable",
    "Checks",
    "Trial",
    "add_parser",
    "check_nodes",
    "configs_of",
    "run",
    "try_strategy",
]
