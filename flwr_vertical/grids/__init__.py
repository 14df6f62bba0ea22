"""How a round travels: in process, over Ray actors, or over Flower's own grids."""

from flwr_vertical.grids.base import NodeConfig, NodesGrid
from flwr_vertical.grids.local import LocalGrid
from flwr_vertical.grids.ray import RayGrid
from flwr_vertical.grids.recording import Record, RecordingGrid

__all__ = ["LocalGrid", "NodeConfig", "NodesGrid", "RayGrid", "Record", "RecordingGrid"]
