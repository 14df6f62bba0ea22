"""The node's side: parties and their steps, state, storage, checkpoints."""

from flwr_vertical.node.file_storage import FileStorage
from flwr_vertical.node.memory_storage import MemoryStorage
from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.steps import StepGroup, Summands, Uses, step
from flwr_vertical.node.storage import Storage

__all__ = [
    "Arbiter",
    "FileStorage",
    "MemoryStorage",
    "Party",
    "StepGroup",
    "Storage",
    "Summands",
    "Uses",
    "step",
]
