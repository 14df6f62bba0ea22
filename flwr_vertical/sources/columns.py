"""Columns of a database or a Parquet folder as columns of a table: types are kept.

Whole numbers stay whole (with gaps they become float64, as in any table), decimal numbers become
float64, booleans stay booleans, texts and enumerations are levels. Dates and times are no numbers
by themselves: they become days since 1970-01-01 on request, and else text with a warning.
"""

import uuid
from collections.abc import Callable, Iterable

import pandas as pd
import pyarrow as pa

from flwr_vertical.counted import counted
from flwr_vertical.errors import DataError
from flwr_vertical.tables.csv_reader import id_columns

_DAY = 86_400.0  # seconds
_DAYS_KEY = "csv.dates"


class SourceColumns:
    """Makes frames of Arrow columns."""

    def __init__(self, where: str, days: bool) -> None:
        self._where, self._days = where, days
        self.notes: list[str] = []
        """What the table's owner should know."""

    def frame(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pd.DataFrame:
        """Return a frame of all columns, without an index."""
        plain, made = self.prepare(schema)
        table = pa.Table.from_batches([*map(made, batches)], plain)
        # Each column of Arrow is given up as soon as its column of pandas is made.
        frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)
        return frame

    def prepare(
        self, schema: pa.Schema
    ) -> tuple[pa.Schema, Callable[[pa.RecordBatch], pa.RecordBatch]]:
        """Return what columns become, and what makes it of rows of all or some of them."""
        names = list(schema.names)
        if not names:
            raise DataError(f"{self._where} is not a query: it returns no columns")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(
                f"{self._where} has several columns named {', '.join(map(repr, twice))}; name "
                "them apart in the query"
            )
        makers = {field.name: self._maker(field) for field in schema}
        plain = pa.schema([(name, kind) for name, (kind, _) in makers.items()])

        def made(batch: pa.RecordBatch) -> pa.RecordBatch:
            own = batch.schema.names
            columns = [makers[n][1](column) for n, column in zip(own, batch.columns, strict=True)]
            return pa.RecordBatch.from_arrays(
                columns, schema=pa.schema([plain.field(n) for n in own])
            )

        return plain, made

    def _maker(self, field: pa.Field) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
        """Return the type that a column becomes, and what makes it."""
        kind, types = field.type, pa.types
        own = _own_type(field)
        if own in ("numeric", "decimal"):
            return pa.float64(), lambda column: _storage(column).cast(pa.float64())
        if own == "money" or types.is_float16(kind):
            kind = pa.null() if own != "money" else pa.binary()
        if types.is_decimal(kind) or types.is_null(kind):
            return pa.float64(), lambda column: column.cast(pa.float64())
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if plain or types.is_string(kind) or types.is_large_string(kind):
            return kind, lambda column: column
        if types.is_dictionary(kind) and types.is_string(kind.value_type):
            return kind, lambda column: column
        if own == "uuid":
            return pa.string(), _uuid_texts
        if isinstance(kind, pa.BaseExtensionType) and types.is_string(kind.storage_type):
            if own != "json":  # an enumeration
                return pa.string(), _storage
        elif types.is_date(kind) or types.is_timestamp(kind):
            return self._dates(field.name)
        raise DataError(
            f"{self._where}: column {field.name!r} holds values of type {own or kind}, expected "
            "numbers, booleans, texts or dates; convert it in the query (CAST) or leave it out"
        )

    def _dates(self, name: str) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
        if self._days:
            return pa.float64(), days_of
        self.notes.append(
            f"{self._where}: column {name!r} holds dates, which are taken for text, each a level "
            f"of its own; set {_DAYS_KEY}='days' to have them as days since 1970-01-01, or leave "
            "the column out by a query"
        )
        return pa.string(), lambda column: column.cast(pa.string())


def days_of(column: pa.Array) -> pa.Array:
    """Return dates or points in time as days since 1970-01-01, with a fraction for the time."""
    seconds = column.cast(pa.timestamp("us", getattr(column.type, "tz", None))).cast(pa.int64())
    return pa.compute.divide(seconds.cast(pa.float64()), _DAY * 1e6)


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame in the order of its IDs, which a database does not keep, if they have one."""
    try:
        return frame.sort_index(kind="stable")
    except TypeError:
        return frame


def with_ids(frame: pd.DataFrame, id_column: str | None, where: str) -> pd.DataFrame:
    """Take the sample IDs from a column, or from several with commas, into the index."""
    ids = id_columns(list(frame.columns), id_column, where)
    if not len(frame):
        raise DataError(f"{where} has no rows, expected one for each sample")
    if any(pd.api.types.is_float_dtype(frame[name].dtype) for name in ids):
        gaps = int(frame[ids].isna().any(axis=1).sum())
        if gaps:  # whole numbers with a gap have become float64
            raise DataError(
                f"{where} has {counted(gaps, 'row')} without a sample ID; give each one or leave "
                "it out"
            )
    return frame.set_index(ids[0] if len(ids) == 1 else ids)


def _own_type(field: pa.Field) -> str:
    """Return what the database, or an extension of Arrow, calls the type; "" for a plain one."""
    metadata = field.metadata or {}
    if b"POSTGRESQL:type" in metadata:
        name = str(metadata[b"POSTGRESQL:type"].decode())
        if name in ("numeric", "money", "uuid"):
            return name
        if name in ("json", "jsonb"):
            return "json"
    if isinstance(field.type, pa.BaseExtensionType):
        return str(getattr(field.type, "type_name", field.type.extension_name.split(".")[-1]))
    return ""


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _uuid_texts(column: pa.Array) -> pa.Array:
    raw = _storage(column).to_pylist()
    return pa.array([None if b is None else str(uuid.UUID(bytes=b)) for b in raw], pa.string())
