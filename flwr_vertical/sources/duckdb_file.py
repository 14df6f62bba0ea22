"""Tables of a DuckDB file."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn

import pandas as pd
import pyarrow as pa

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.log import logger
from flwr_vertical.optional import require
from flwr_vertical.sources.address import Address
from flwr_vertical.sources.columns import SourceColumns
from flwr_vertical.sources.statements import Wanted, quoted, quoted_table, table_parts

_ROWS = 65_536  # of a batch


def read(
    address: Address, wanted: Wanted, columns: list[str] | None, made: SourceColumns
) -> pd.DataFrame:
    """Return the rows of a table or query; the file is opened to be read only."""
    with _connected(address, read_only=True) as connection, _explained(address, wanted.what):
        duckdb = require("duckdb", f"the database {address}")
        statements = connection.extract_statements(wanted.statement())
        select = duckdb.StatementType.SELECT
        if [each.type for each in statements] != [select]:
            raise ConfigError(
                f"the database {address}: {wanted.what} is not one query; expected one SELECT "
                "statement"
            )
        reader = connection.sql(wanted.statement(columns)).to_arrow_reader(_ROWS)
        # An error's traceback holds the reader. While one is open, the file stays open, and DuckDB
        # waits for ever when it shall be opened again.
        with closing(reader):
            return made.frame(reader.schema, reader)


def exists(address: Address, table: str) -> bool:
    """Whether there is a table or view of this name."""
    with _connected(address, read_only=True) as connection, _explained(address, table):
        return _has(connection, table)


def write(
    address: Address, table: str, data: pa.Table, replace: bool, taken: Callable[[], NoReturn]
) -> None:
    """Write a table in one transaction; see `flwr_vertical.sources.postgres.write`."""
    *schema, name = table_parts(table)
    new = ".".join(map(quoted, [*schema, f"{name}__new"]))
    what = f"writing the table {table!r}"
    with _connected(address, read_only=False) as connection, _explained(address, what):
        connection.register("written_rows", data)
        connection.begin()
        if not replace and _has(connection, table):
            taken()
        connection.execute(f"CREATE TABLE {new} AS SELECT * FROM written_rows")
        if replace:
            connection.execute(f"DROP TABLE IF EXISTS {quoted_table(table)}")
        connection.execute(f"ALTER TABLE {new} RENAME TO {quoted(name)}")
        connection.commit()


def _has(connection: Any, table: str) -> bool:
    *schema, name = table_parts(table)
    found = connection.execute(
        "SELECT count(*) FROM information_schema.tables WHERE table_name = ? AND table_schema = "
        "coalesce(?, current_schema())",
        [name, schema[-1] if schema else None],
    ).fetchone()
    return bool(found[0])


@contextmanager
def _connected(address: Address, read_only: bool) -> Iterator[Any]:
    """Open the file; what is not committed is rolled back at the end."""
    duckdb = require("duckdb", f"the database {address}")
    if read_only and (address.path is None or not address.path.is_file()):
        raise DataError(f"the database {address} does not exist, expected the file of a database")
    try:
        connection = duckdb.connect(str(address.path), read_only=read_only)
    except duckdb.Error as error:
        text = str(error)
        logger.error("the database %s: %s", address, text.split("\n")[0])
        locked = "lock" in text or "same database file" in text
        why = (
            "is held open by another process that writes to it; close that one first"
            if locked
            else "cannot be opened as a DuckDB database; the log of this node has the cause"
        )
        raise DataError(f"the database {address} {why}") from None
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _explained(address: Address, what: str) -> Iterator[None]:
    """Turn an error of DuckDB into one that quotes no data; its words go to this node's log."""
    duckdb = require("duckdb", f"the database {address}")
    try:
        yield
    except duckdb.Error as error:
        logger.error("the database %s, %s: %s", address, what, str(error).split("\n")[0][:500])
        for kind, why in (
            (duckdb.CatalogException, "names a table that is not there; check its name"),
            (duckdb.BinderException, "names a column that is not there"),
            (duckdb.ParserException, "is not one query; expected one SELECT statement"),
        ):
            if isinstance(error, kind):
                raise ConfigError(f"the database {address}: {what} {why}") from None
        raise DataError(
            f"the database {address} refused {what} ({type(error).__name__}); the log of this "
            "node has its words"
        ) from None
