"""Tables of an SQLite file, by Python's own module.

A column of SQLite may hold values of any type, whatever was declared. So types are those of the
values; of the declared ones only BOOLEAN and dates count, for which SQLite has no values.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn
from urllib.parse import quote

import pandas as pd
import pyarrow as pa

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.log import logger
from flwr_vertical.sources.address import Address
from flwr_vertical.sources.columns import SourceColumns
from flwr_vertical.sources.statements import Wanted, quoted, quoted_table, table_parts

_ROWS = 20_000  # of a batch
_PATIENCE = 5.0  # seconds that a lock of another process is waited for
_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}


def read(
    address: Address, wanted: Wanted, columns: list[str] | None, made: SourceColumns
) -> pd.DataFrame:
    """Return the rows of a table or query; the file is opened to be read only."""
    if address.path is None or not address.path.is_file():
        raise DataError(f"the database {address} does not exist, expected the file of a database")
    with _connected(address, "ro") as connection, _explained(address, wanted.what):
        # Only one query can be made a view of, and a view knows the declared types.
        connection.execute(f"CREATE TEMP VIEW wanted_rows AS\n{wanted.statement(columns)}")
        described = connection.execute("PRAGMA temp.table_info(wanted_rows)").fetchall()
        declared = [str(row[2]).upper() for row in described]
        cursor = connection.execute(wanted.statement(columns))
        names = [str(column[0]) for column in cursor.description]
        chunks: list[list[pa.Array | None]] = [[] for _ in names]
        while rows := cursor.fetchmany(_ROWS):
            for held, values in zip(chunks, zip(*rows, strict=True), strict=True):
                held.append(_array(values))
        found = [
            _column(held, name, kind, address)
            for held, name, kind in zip(chunks, names, declared, strict=True)
        ]
        table = pa.Table.from_arrays(found, names=names)
    return made.frame(table.schema, table.to_batches())


def exists(address: Address, table: str) -> bool:
    """Whether there is a table or view of this name."""
    with _connected(address, "ro") as connection, _explained(address, table):
        return _has(connection, table)


def write(
    address: Address, table: str, data: pa.Table, replace: bool, taken: Callable[[], NoReturn]
) -> None:
    """Write a table in one transaction; see `flwr_vertical.sources.postgres.write`."""
    name = table_parts(table)[-1]
    new = f"{name}__new"
    what = f"writing the table {table!r}"
    columns = ", ".join(f"{quoted(f.name)} {_declared(f.type)}" for f in data.schema)
    marks = ", ".join("?" for _ in data.schema)
    with _connected(address, "rwc") as connection, _explained(address, what):
        connection.execute("BEGIN IMMEDIATE")
        if not replace and _has(connection, table):
            taken()
        connection.execute(f"CREATE TABLE {quoted(new)} ({columns})")
        for batch in data.to_batches(max_chunksize=_ROWS):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            connection.executemany(f"INSERT INTO {quoted(new)} VALUES ({marks})", rows)
        if replace:
            connection.execute(f"DROP TABLE IF EXISTS {quoted_table(table)}")
        connection.execute(f"ALTER TABLE {quoted(new)} RENAME TO {quoted(name)}")
        connection.execute("COMMIT")


def _has(connection: sqlite3.Connection, table: str) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE type IN ('table', 'view') AND name = ?",
        [table_parts(table)[-1]],
    ).fetchone()
    return bool(found[0])


def _array(values: tuple[Any, ...]) -> pa.Array | None:
    """Return values of one type, or of whole and other numbers; None of any other mixture."""
    held = {type(value) for value in values} - {type(None)}
    if held == {int, float}:
        held = {float}
    if not held:
        return pa.nulls(len(values))
    kind = _TYPES.get(held.pop()) if len(held) == 1 else None
    return None if kind is None else pa.array(values, kind)


def _column(chunks: list[pa.Array | None], name: str, declared: str, address: Address) -> Any:
    """Put the chunks of a column together in the one type that all have."""
    kinds = {None if chunk is None else chunk.type for chunk in chunks} - {pa.null()}
    if kinds == {pa.int64(), pa.float64()}:
        kinds = {pa.float64()}
    if None in kinds or len(kinds) > 1:
        raise DataError(
            f"{address}: column {name!r} holds values of several types, or bytes, expected all "
            "numbers or all texts; convert it in the query (CAST) or leave it out"
        )
    kind = kinds.pop() if kinds else pa.null()
    column = pa.chunked_array([chunk.cast(kind) for chunk in chunks if chunk is not None], kind)
    if (
        declared.startswith("BOOL")
        and kind == pa.int64()
        and set(column.unique().to_pylist()) <= {0, 1, None}
    ):
        return column.cast(pa.bool_())
    if declared.startswith(("DATE", "TIMESTAMP")) and kind == pa.string():
        try:
            return column.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:  # dates that are not written as year-month-day
            return column
    return column


def _declared(kind: pa.DataType) -> str:
    """Return the type that a column is declared with."""
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_integer(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) else "TEXT"


@contextmanager
def _connected(address: Address, mode: str) -> Iterator[sqlite3.Connection]:
    """Open the file; what is not committed is rolled back at the end."""
    uri = f"file:{quote(str(address.path))}?mode={mode}"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
    except sqlite3.Error as error:
        logger.error("the database %s: %s", address, error)
        raise DataError(
            f"the database {address} cannot be opened; check the path and who may read it"
        ) from None
    with closing(connection):
        yield connection


@contextmanager
def _explained(address: Address, what: str) -> Iterator[None]:
    """Turn an error of SQLite into one that quotes no data; its words go to this node's log."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        text = str(error)
        logger.error("the database %s, %s: %s", address, what, text[:500])
        for said, why in (
            ("no such table", "names a table that is not there; check its name"),
            ("no such column", "names a column that is not there"),
            ("syntax error", "is not one query; expected one SELECT statement"),
            ("one statement", "is not one query; expected one SELECT statement"),
            ("incomplete input", "is not one query; expected one SELECT statement"),
        ):
            if said in text:
                raise ConfigError(f"the database {address}: {what} {why}") from None
        if "not a database" in text:
            raise DataError(f"{address} is not an SQLite database") from None
        if "locked" in text:
            raise DataError(
                f"the database {address} is locked by another process; close that one first"
            ) from None
        raise DataError(
            f"the database {address} refused {what}; the log of this node has its words"
        ) from None
