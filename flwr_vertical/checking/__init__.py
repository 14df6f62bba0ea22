"""``flwr-vertical check``: what a run would meet in the tables of a node, before it starts."""

from flwr_vertical.checking.command import run_check
from flwr_vertical.checking.tables import CheckedTable, Checks, check_files
from flwr_vertical.checking.trial import Trial, try_strategy

__all__ = [
    "CheckedTable",
    "Checks",
    "Trial",
    "check_files",
    "run_check",
    "try_strategy",
]
