"""A folder of Parquet files, partitioned or not, as one table."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from flwr_vertical.errors import DataError, VerticalError
from flwr_vertical.sources.columns import SourceColumns
from flwr_vertical.tables.csv_reader import require_columns
from flwr_vertical.tables.on_disk import BATCH_ROWS, frame_of

_SUFFIXES = (".parquet", ".pq")


def files_of(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder and of those in it, in the order of their paths.

    Names that begin with a dot or an underscore are left out, as other tools do: these are files
    that are being written, and marks such as ``_SUCCESS``.
    """
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )
    if not found:
        raise DataError(f"{folder} is a folder without Parquet files, expected a table")
    return found


def read_folder(folder: Path, columns: Sequence[str] | None, made: SourceColumns) -> pd.DataFrame:
    """Return the rows of all files, in the order of their paths.

    Folders named ``key=value`` make a column ``key``. An index that pandas stored in the files is
    a column, the first.
    """
    files = files_of(folder)
    first, *others = [(path, _schema(path)) for path in files]
    for path, schema in others:
        _check_same(first, (path, schema))
    # Whole numbers that have gaps in one file only are float64 there; the wider type is taken.
    schema = pa.unify_schemas([first[1], *(s for _, s in others)], promote_options="permissive")
    partitions = pyarrow.dataset.HivePartitioning.discover(infer_dictionary=False)
    try:
        keys = pyarrow.dataset.dataset(
            [str(path) for path in files],
            format="parquet",
            partitioning=partitions,
            partition_base_dir=str(folder),
        ).schema
        schema = pa.schema([*schema, *(field for field in keys if field.name not in schema.names)])
        data = pyarrow.dataset.dataset(
            [str(path) for path in files],
            schema=schema,
            format="parquet",
            partitioning=partitions,
            partition_base_dir=str(folder),
        )
        names = _in_order(schema, first[1]) if columns is None else list(columns)
        require_columns(names, schema.names, folder)
        plain, make = made.prepare(pa.schema([schema.field(name) for name in names]))

        def batches(of: list[str], **how: int) -> Iterator[pa.RecordBatch]:
            return map(make, data.scanner(columns=of, **how).to_batches())

        return frame_of(
            plain,
            data.count_rows(),
            lambda of: pa.Table.from_batches(
                [*batches(of)], pa.schema([plain.field(n) for n in of])
            ),
            lambda of: batches(of, batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1),
        )
    except VerticalError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        cause = str(error).strip().split("\n")[0]
        raise DataError(f"{folder} cannot be read as a table: {cause}") from error


def folder_digest(folder: Path) -> str:
    """Return a digest of the names and contents of all files."""
    found = hashlib.blake2b(digest_size=16)
    for path in files_of(folder):
        found.update(str(path.relative_to(folder)).encode() + b"\0")
        with path.open("rb") as file:
            own = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        found.update(own.digest())
    return found.hexdigest()


def _schema(path: Path) -> pa.Schema:
    try:
        return pyarrow.parquet.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        cause = str(error).strip().split("\n")[0]
        raise DataError(f"{path} cannot be read as PARQUET table: {cause}") from error


def _check_same(first: tuple[Path, pa.Schema], other: tuple[Path, pa.Schema]) -> None:
    """Refuse a file whose columns are not those of the first one."""
    path, schema = other
    lacking = [name for name in first[1].names if name not in schema.names]
    more = [name for name in schema.names if name not in first[1].names]
    if lacking or more:
        parts = [f"lacks {', '.join(map(repr, lacking))}"] if lacking else []
        parts += [f"has {', '.join(map(repr, more))} besides"] if more else []
        raise DataError(
            f"{path} {' and '.join(parts)}, compared with {first[0]}: all files of a folder must "
            "have the same columns; take it out, or write it again"
        )
    for name in first[1].names:
        there, here = first[1].field(name).type, schema.field(name).type
        if _family(there) != _family(here) and not {pa.null()} & {there, here}:
            raise DataError(
                f"{path}: column {name!r} is of type {here}, in {first[0]} it is {there}: all "
                "files of a folder must have the same types; write it again"
            )


def _family(kind: pa.DataType) -> str:
    """Return what kinds of numbers, texts or dates go together."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    return "date" if types.is_date(kind) or types.is_timestamp(kind) else str(kind)


def _in_order(schema: pa.Schema, written: pa.Schema) -> list[str]:
    """Return the names of the columns, those of an index that pandas stored first."""
    stored = (written.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in stored if isinstance(name, str) and name in schema.names]
    return [*index, *(name for name in schema.names if name not in index)]
