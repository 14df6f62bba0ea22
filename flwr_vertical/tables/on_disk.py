"""Columns of numbers of a large Parquet table: read by row groups, and kept on disk."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import DataError
from flwr_vertical.scratch import ScratchFile, is_large, is_mapped

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

    `read` reads some columns whole; `batches` goes through all rows of some columns in order,
    `BATCH_ROWS` at a time at most. Numbers on disk have NumPy's dtypes: whole ones with gaps are
    float64.
    """
    stored = list((schema.pandas_metadata or {}).get("index_columns", []))
    # The first column is the IDs if no other is named.
    large = {
        field.name: np.dtype(field.type.to_pandas_dtype())
        for field in list(schema)[1:]
        if _is_number(field.type) and field.name not in stored
    }
    if not is_large(n_rows * sum(dtype.itemsize for dtype in large.values())):
        large = {}
    kept = [name for name in schema.names if name not in large]
    parts = [read(kept[start : start + _COLUMNS]) for start in range(0, len(kept), _COLUMNS)]
    columns = [part.column(name) for part in parts for name in part.column_names]
    own = pa.schema([schema.field(name) for name in kept], schema.metadata)
    for place, field in enumerate(own):
        if pa.types.is_decimal(field.type):  # objects in pandas; in a folder they are floats, too
            columns[place] = columns[place].cast(pa.float64())
            own = own.set(place, field.with_type(pa.float64()))
    table = pa.Table.from_arrays(columns, schema=own)
    del parts, columns
    pa.default_memory_pool().release_unused()
    # Column by column, so that no two tables are there at a time.
    frame: pd.DataFrame = table.to_pandas(
        split_blocks=True, self_destruct=True, date_as_object=False
    )
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
    return isinstance(column.dtype, np.dtype) and is_mapped(column.to_numpy())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _mapped(
    dtypes: dict[str, np.dtype[Any]],
    n_rows: int,
    batches: Callable[[list[str]], Iterable[pa.RecordBatch]],
) -> dict[str, AnyArray]:
    """Write columns to a file, one behind the other, and map them."""
    file, starts, end = ScratchFile("the numbers of a large table"), {}, 0

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
                values = column.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
                file.write(starts[name] + at * dtype.itemsize, values)
            at += len(batch)
        if at != n_rows:
            raise DataError(f"{at:,} rows were read of {n_rows:,}: it is being written to")
        return gaps

    for name, dtype in dtypes.items():
        place(name, dtype)
    for name in fill(list(dtypes)):
        place(name, np.dtype(np.float64))
        fill([name])
    return {name: file.array(starts[name], dtype, (n_rows,)) for name, dtype in dtypes.items()}
