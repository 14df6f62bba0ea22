"""Columns of numbers of a large Parquet table: read by row groups, kept on disk, and mapped.

Of columns that are mapped the system keeps what is being read, and takes it back where memory is
short. For whoever reads them they are arrays like others, but that nobody can write to them.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from flwr_vertical.errors import DataError, StorageError

HOLD_BYTES = 1 << 30
"""Of numbers of a table that are read into memory; more are on disk."""

BATCH_ROWS = 1 << 16
"""Rows that are read at a time where numbers go to the disk."""

_COLUMNS = 8  # that are read at a time into memory: all at once take three times the table


def frame_of(
    schema: pa.Schema,
    n_rows: int,
    read: Callable[[list[str]], pa.Table],
    batches: Callable[[list[str]], Iterable[pa.RecordBatch]],
) -> pd.DataFrame:
    """Return the columns of Parquet files as pandas has them, numbers on disk if they are many.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of the columns, in order; of what pandas stored with them, too.
    n_rows : int
        How many rows there are.
    read : Callable[[list[str]], pyarrow.Table]
        Reads some columns whole.
    batches : Callable[[list[str]], Iterable[pyarrow.RecordBatch]]
        Goes through all rows of some columns in order, `BATCH_ROWS` at a time at most.

    Returns
    -------
    pandas.DataFrame of shape (n_rows, n_columns)
        The numbers on disk have NumPy's dtypes: whole ones with gaps are float64.

    Raises
    ------
    StorageError
        If the disk has no room for the numbers.
    """
    stored = list((schema.pandas_metadata or {}).get("index_columns", []))
    # The first column is the IDs if no other is named.
    large = {
        field.name: np.dtype(field.type.to_pandas_dtype())
        for field in list(schema)[1:]
        if _is_number(field.type) and field.name not in stored
    }
    if n_rows * sum(dtype.itemsize for dtype in large.values()) <= HOLD_BYTES:
        large = {}
    kept = [name for name in schema.names if name not in large]
    parts = [read(kept[start : start + _COLUMNS]) for start in range(0, len(kept), _COLUMNS)]
    columns = [part.column(name) for part in parts for name in part.column_names]
    own = pa.schema([schema.field(name) for name in kept], schema.metadata)
    table = pa.Table.from_arrays(columns, schema=own)
    del parts, columns
    pa.default_memory_pool().release_unused()
    # Column by column, so that no two tables are there at a time.
    frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
    del table
    if large:
        mapped, others = _mapped(large, n_rows, batches), iter(frame.items())
        names = [name for name in schema.names if name not in stored]
        together = dict((name, mapped[name]) if name in mapped else next(others) for name in names)
        frame = pd.DataFrame(together, index=frame.index, copy=False)
    pa.default_memory_pool().release_unused()
    return frame


def is_on_disk(column: "pd.Series[Any]") -> bool:
    """Tell whether a column is mapped, so that a copy of it would be what takes memory."""
    found: Any = column.to_numpy() if isinstance(column.dtype, np.dtype) else None
    while isinstance(found, np.ndarray):
        found = found.base
    return isinstance(found, mmap.mmap)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _mapped(
    dtypes: dict[str, np.dtype[Any]],
    n_rows: int,
    batches: Callable[[list[str]], Iterable[pa.RecordBatch]],
) -> dict[str, npt.NDArray[Any]]:
    """Write columns to a file without a name, one behind the other, and map them."""
    # The file is there as long as a column is: each holds it open.
    with tempfile.TemporaryFile(prefix="flwr-vertical-table-") as file:
        starts, end = {}, 0

        def place(name: str, dtype: np.dtype[Any]) -> None:
            nonlocal end
            dtypes[name], starts[name] = dtype, end
            end += n_rows * dtype.itemsize

        def fill(names: list[str]) -> set[str]:
            """Write columns; return those of whole numbers with gaps, which are no whole ones."""
            gaps, at = set(), 0
            for batch in batches(names):
                for name, column in zip(names, batch.columns, strict=True):
                    dtype = dtypes[name]
                    if column.null_count and dtype.kind != "f":
                        gaps.add(name)
                        continue
                    values = np.ascontiguousarray(column.to_numpy(zero_copy_only=False), dtype)
                    _write(file, starts[name] + at * dtype.itemsize, values)
                at += len(batch)
            if at != n_rows:
                raise DataError(f"{at:,} rows were read of {n_rows:,}: it is being written to")
            return gaps

        for name, dtype in dtypes.items():
            place(name, dtype)
        for name in fill(list(dtypes)):
            place(name, np.dtype(np.float64))
            fill([name])
        return {
            name: np.memmap(file, dtype, "r", starts[name], (n_rows,)).view(np.ndarray)
            for name, dtype in dtypes.items()
        }


def _write(file: BinaryIO, at: int, values: npt.NDArray[Any]) -> None:
    try:
        file.seek(at)
        file.write(values.data)
        file.flush()
    except OSError as error:
        raise StorageError(
            f"the table's numbers take more than {HOLD_BYTES / 2**30:g} GiB, and cannot be written "
            f"to the folder for temporary files, {tempfile.gettempdir()}: {error.strerror}; make "
            "room there, or set TMPDIR to a folder of a disk with room"
        ) from error
