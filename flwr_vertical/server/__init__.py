"""The server's side: the federation, its rounds, the journal, recovery."""

from flwr_vertical.server.federation import Federation, Total
from flwr_vertical.server.settings import RunOptions, RunSettings

__all__ = ["Federation", "RunOptions", "RunSettings", "Total"]
