"""The node's side: parties and their steps, state, storage, checkpoints."""

from flwr_vertical.node.party import Arbiter, Party
from flwr_vertical.node.steps import StepGroup, Summands, Uses, step
from flwr_vertical.node.storage import FileStorage, MemoryStorage, Storage

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
