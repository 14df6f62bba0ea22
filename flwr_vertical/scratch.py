"""Arrays that are too large for memory: on the disk for as long as they are used, and mapped.

Of what is mapped the system keeps in memory what is being read, and takes it back where memory is
short. Whoever reads such an array sees one like others, but that nobody can write to.
"""

import mmap
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import AnyArray, Array, Indices
from flwr_vertical.errors import StorageError

HOLD_BYTES = 1 << 30
"""What is held in memory; more is on disk."""


class ScratchFile:
    """A temporary file without a name: gone when the last array mapped from it is."""

    def __init__(self, what: str) -> None:
        self._what = what
        # Each array holds it open, too.
        self._file = tempfile.TemporaryFile(prefix="flwr-vertical-")  # noqa: SIM115

    def write(self, at: int, values: AnyArray) -> None:
        """Write an array from a byte on; raise `StorageError` if the disk has no room."""
        try:
            self._file.seek(at)
            self._file.write(np.ascontiguousarray(values).data)
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"{self._what} cannot be written to the folder for temporary files, "
                f"{tempfile.gettempdir()}: {error.strerror}; make room there, or set TMPDIR to a "
                "folder of a disk with room"
            ) from error

    def array(self, at: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> AnyArray:
        """Return what was written from a byte on as an array."""
        if 0 in shape:  # nothing can be mapped
            return np.empty(shape, dtype)
        return np.memmap(self._file, dtype, "r", at, shape).view(np.ndarray)


class ColumnStack:
    """Columns of numbers side by side, in a file if about so many are large."""

    def __init__(self, n_rows: int, n_columns: int) -> None:
        self._n_rows, self._columns = n_rows, list[Array]()
        self._file = (
            ScratchFile("a matrix of numbers") if is_large(8 * n_rows * n_columns) else None
        )
        self._n_columns = 0

    def add(self, column: Array) -> None:
        """Put a column, (n_rows,), right of those that there are."""
        if self._file is None:
            self._columns.append(column)
        else:
            self._file.write(8 * self._n_rows * self._n_columns, column.astype(float, copy=False))
        self._n_columns += 1

    def matrix(self) -> Array:
        """Return all columns, (n_rows, n_columns)."""
        if self._file is None:
            return np.column_stack(self._columns)
        return self._file.array(0, np.float64, (self._n_columns, self._n_rows)).T


def take(matrix: Array, rows: Indices) -> Array:
    """Return some rows (n_taken,) of a matrix, in a file if they are large."""
    if not is_large(8 * len(rows) * matrix.shape[1]):
        return np.asarray(matrix[rows])
    found = ColumnStack(len(rows), matrix.shape[1])
    for column in matrix.T:
        found.add(column[rows])
    return found.matrix()


def is_large(n_bytes: int) -> bool:
    """Tell whether so much is kept on disk."""
    return n_bytes > HOLD_BYTES


def is_mapped(array: Any) -> bool:
    """Tell whether an array is on disk, so that a copy of it would be what takes memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)
