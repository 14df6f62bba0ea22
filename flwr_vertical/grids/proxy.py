"""`WrappingGrid`: a grid around another one, which knows everything but the messages."""

from collections.abc import Iterable, Sequence

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from flwr_vertical.grids.base import NodesGrid


def reopen(grid: Grid, node_ids: Sequence[int]) -> list[int]:
    """Open what messages to these nodes need, on grids that know such a thing; do not wait."""
    return grid.reopen(node_ids) if isinstance(grid, WrappingGrid) else list(node_ids)


def silent(grid: Grid, node_ids: Sequence[int]) -> list[int]:
    """Return the nodes that have given no sign of life yet, as far as the grid can tell.

    Nodes in this process, in actors of its own or of a simulation are there, however slow they
    are. Of a SuperNode that Flower lists nothing more is known: it may have died a minute ago.
    """
    if isinstance(grid, WrappingGrid):
        return grid.silent(node_ids)
    if isinstance(grid, NodesGrid):
        return []
    # It brings SQLAlchemy, which takes a party's process a second to import.
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid

    return [] if isinstance(grid, InMemoryGrid) else list(node_ids)


class WrappingGrid(Grid):
    """Asks another grid for runs and nodes; a subclass says how messages travel."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Set the run of the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Information about the run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message on the wrapped grid."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Get the IDs of all nodes."""
        return self._grid.get_node_ids()

    def reopen(self, node_ids: Sequence[int]) -> list[int]:
        """Open what messages to these nodes need; return those that can be sent messages now."""
        return reopen(self._grid, node_ids)

    def silent(self, node_ids: Sequence[int]) -> list[int]:
        """Return the nodes that have given no sign of life yet."""
        return silent(self._grid, node_ids)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Get all nodes."""
        return self._grid.get_nodes()
