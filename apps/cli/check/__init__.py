"""``flwr-vertical check``: what a run would meet in the tables of a node, before it starts."""

from apps.cli.check.command import run_check
from apps.cli.check.tables import CheckedTable, Checks, check_files
from apps.cli.check.trial import Trial, try_strategy

__all__ = ["CheckedTable", "Checks", "Trial", "check_files", "run_check", "try_strategy"]
