"""Arrays in the ledger's file: compressed, with a checksum each."""

import sqlite3
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from flwr_vertical.arrays import AnyArray
from flwr_vertical.privacy_ledger.database import damaged
from flwr_vertical.privacy_ledger.seals import checksum_of_array, write


class Arrays:
    """The arrays of a ledger within one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path, who: str) -> None:
        self._connection, self._path, self._who = connection, path, who

    def get(self, name: str, dtype: Any = None, length: int | None = None) -> AnyArray:
        """Return an array, by default of the dtype stored; what is missing up to a length is 0."""
        row = self._connection.execute(
            "SELECT dtype, data, checksum FROM arrays WHERE name = ?", (name,)
        ).fetchone()
        found = np.zeros(0, dtype=dtype or np.uint8)
        if row is not None:
            stored, data, checksum = row
            if not isinstance(data, bytes) or checksum_of_array(name, stored, data) != checksum:
                raise damaged(self._path, self._who, f"{name} does not have its checksum")
            packed = memoryview(data)[1:]
            raw = packed if data[:1] == b"r" else zlib.decompress(packed)
            found = np.frombuffer(raw, dtype=stored).astype(dtype or stored, copy=False)
        if length is None or len(found) >= length:
            return found
        return np.concatenate([found, np.zeros(length - len(found), found.dtype)])

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin so, sorted."""
        rows = self._connection.execute("SELECT name FROM arrays ORDER BY name").fetchall()
        return [name for (name,) in rows if name.startswith(prefix)]

    def put(self, name: str, values: AnyArray, hashes: bool = False) -> None:
        """Write an array (n,) in the place of that name; integers from 0 as short as can be."""
        if values.dtype.kind == "i":
            values = values.astype(np.min_scalar_type(int(values.max(initial=0))))
        raw = np.ascontiguousarray(values).data
        packed = b"r" + raw if hashes else b"z" + zlib.compress(raw, 1)
        dtype = values.dtype.str
        write(
            self._connection,
            "arrays",
            name,
            "INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?)",
            (name, dtype, checksum_of_array(name, dtype, packed), packed),
        )
