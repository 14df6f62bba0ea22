"""The protocol core: parties and their steps, rounds, private sums."""

from flwr_vertical.protocol.app import party_app
from flwr_vertical.protocol.codec import decode, encode
from flwr_vertical.protocol.federation import Federation, Total
from flwr_vertical.protocol.party import Arbiter, Party, Summands, step
from flwr_vertical.protocol.storage import FileStorage, MemoryStorage, Storage

__all__ = [
    "Arbiter",
    "Federation",
    "FileStorage",
    "MemoryStorage",
    "Party",
    "Storage",
    "Summands",
    "Total",
    "decode",
    "encode",
    "party_app",
    "step",
]
