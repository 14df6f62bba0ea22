"""What the parties of a simulation saved, on disk: one that is resumed finds it there."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pandas as pd

from flwr_vertical.protocol.disk import FILE_MODE
from flwr_vertical.results.archive import pack, unpack
from flwr_vertical.whole_files import TEMPORARY_PREFIX, write_bytes_atomically

_TABLE, _MODEL = ".table.npz", ".model.npz"


class OutputFolder:
    """Tables and models of all parties in one folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def save_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write what a party holds afterwards; on disk when this returns."""
        data = pack(frame, f"the table of party {name!r}")
        write_bytes_atomically(self.path / f"{name}{_TABLE}", data, FILE_MODE)

    def save_model(self, party: str, data: bytes) -> None:
        """Write a party's part of a model; on disk when this returns."""
        write_bytes_atomically(self.path / f"{party}{_MODEL}", data, FILE_MODE)

    def load(self, parties: Iterable[str]) -> tuple[dict[str, pd.DataFrame], dict[str, bytes]]:
        """Return the tables and models that are there, by party."""

        def read(kind: str) -> dict[str, bytes]:
            paths = {p.name.removesuffix(kind): p for p in sorted(self.path.glob(f"*{kind}"))}
            known = set(parties)
            return {n: p.read_bytes() for n, p in paths.items() if n.split("@")[0] in known}

        tables = read(_TABLE).items()
        return {n: unpack(data, f"{self.path / n}{_TABLE}") for n, data in tables}, read(_MODEL)

    def clear(self) -> None:
        """Remove them, and the folder unless others keep something there."""
        for pattern in (f"*{_TABLE}", f"*{_MODEL}", f"{TEMPORARY_PREFIX}*.npz"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or not empty
            self.path.rmdir()
