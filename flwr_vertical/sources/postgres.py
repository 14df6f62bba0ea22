"""Tables of PostgreSQL, read and written by the binary COPY of its ADBC driver.

Of a table of 500,000 rows and 20 columns it needs a fifth of the processor time of SQLAlchemy with
psycopg and a fifth of its memory, and types are those of the database, not of the rows that came
(docs/how-to/databases.md has the figures and the command).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pandas as pd
import pyarrow as pa

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.log import logger
from flwr_vertical.optional import require
from flwr_vertical.sources.address import Address
from flwr_vertical.sources.columns import SourceColumns
from flwr_vertical.sources.statements import Wanted, quoted, quoted_table, table_parts

_PASSWORD = (
    "set it by ${NAME} in the address, by 'secret-file', or by libpq's PGPASSWORD or ~/.pgpass"
)
# What libpq says when it cannot connect, and what to do. It says it before there is a session, so
# that no SQLSTATE tells the cases apart.
_UNREACHED = (
    (r"password authentication failed|no password supplied", f"refuses the password; {_PASSWORD}"),
    (r'role ".*" does not exist', "has no such user; check the user of the address"),
    (r'database ".*" does not exist', "has no such database; check the end of the address"),
    (r"translate host name|Name or service", "has an unknown host; check the address"),
    (r"Connection refused", "does not answer: nothing listens there; check host and port"),
    (r"timeout|timed out", "does not answer in time; check host, port and firewall"),
    (r"pg_hba\.conf", "does not let this user in from this machine; ask its administrator"),
    (r"No route|unreachable", "cannot be reached from this machine; check host and network"),
    (r"SSL|certificate", "and this machine do not agree on TLS; check 'sslmode' of the address"),
    (r"starting up|shutting down|too many", "takes no connections now; try again later"),
)
# By SQLSTATE: what is wrong with a query, and what to do.
_REFUSED = {
    "42P01": "names a table that is not there; check its name, its case and its schema",
    "42703": "names a column that is not there",
    "42601": "is not one query; expected one SELECT statement",
    "42501": "is not permitted to this user of the database; ask for the right to SELECT",
    "25006": "would change the database; expected a SELECT statement",
    "57014": "was stopped by the database, which limits how long a statement may take",
    "3F000": "names a schema that is not there",
}


def read(
    address: Address, wanted: Wanted, columns: list[str] | None, made: SourceColumns
) -> pd.DataFrame:
    """Return the rows of a table or query, in a transaction that cannot change anything."""
    with _connected(address) as connection, connection.cursor() as cursor:
        with _explained(address, wanted.what):
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(wanted.statement(columns))
            reader = cursor.fetch_record_batch()
        return made.frame(reader.schema, _batches(reader, address, wanted))


def exists(address: Address, table: str) -> bool:
    """Whether there is a table or view of this name."""
    what = f"the table {table!r}"
    with (
        _connected(address) as connection,
        connection.cursor() as cursor,
        _explained(address, what),
    ):
        return _oid(cursor, table) is not None


def write(
    address: Address, table: str, data: pa.Table, replace: bool, taken: Callable[[], NoReturn]
) -> None:
    """Write a table in one transaction: others see the old state or the new one."""
    *schema, name = table_parts(table)
    new = f"{name[:40]}__new"
    options: dict[str, Any] = {"db_schema_name": schema[-1]} if schema else {}
    fresh = ".".join(map(quoted, [*schema, new]))
    what = f"writing the table {table!r}"
    with (
        _connected(address) as connection,
        connection.cursor() as cursor,
        _explained(address, what),
    ):
        if not replace and _oid(cursor, table) is not None:
            taken()
        # The rows are complete before the old table goes, which then is locked for a moment.
        cursor.adbc_ingest(new, data, mode="create", **options)
        if replace:
            cursor.execute(f"DROP TABLE IF EXISTS {quoted_table(table)}")
        cursor.execute(f"ALTER TABLE {fresh} RENAME TO {quoted(name)}")
        connection.commit()


def _oid(cursor: Any, table: str) -> int | None:
    cursor.execute("SELECT to_regclass($1)::oid::int8", (quoted_table(table),))
    return cursor.fetchone()[0]  # type: ignore[no-any-return]


def _batches(reader: Any, address: Address, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Return the batches as they arrive; the connection may break meanwhile."""
    while True:
        with _explained(address, wanted.what):
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
        yield batch


@contextmanager
def _connected(address: Address) -> Iterator[Any]:
    """Connect; what is not committed is rolled back at the end."""
    driver = require("adbc_driver_postgresql", f"the database {address}")
    dbapi = require(f"{driver.__name__}.dbapi", f"the database {address}")
    try:
        connection = dbapi.connect(address.uri)
    except dbapi.Error as error:
        text = str(error)
        why = next((said for pattern, said in _UNREACHED if re.search(pattern, text)), None)
        logger.error("the database %s: %s", address, _first_line(text))
        if why is None:
            why = "cannot be connected to; the log of this node has the cause"
        raise DataError(f"the database {address} {why}") from None
    with connection:
        yield connection


@contextmanager
def _explained(address: Address, what: str) -> Iterator[None]:
    """Turn a driver's error into one that quotes no data; its words go to this node's log."""
    from adbc_driver_manager import Error

    try:
        yield
    except (Error, pa.ArrowException, OSError) as error:
        if isinstance(error, DataError | ConfigError):
            raise
        in_text = re.search(r"SQLSTATE: ([0-9A-Z]{5})", str(error))
        state = getattr(error, "sqlstate", None) or (in_text and in_text.group(1))
        logger.error("the database %s, %s: %s", address, what, _first_line(str(error)))
        if state in _REFUSED:
            raise ConfigError(f"the database {address}: {what} {_REFUSED[state]}") from None
        # In the middle of the rows the driver tells no state.
        refused = state is not None or "ERROR:" in str(error)
        if not refused or str(state).startswith(("08", "57P")):
            raise DataError(
                f"the database {address} was lost while {what} was under way; see whether it runs, "
                "and start the run again"
            ) from None
        raise DataError(
            f"the database {address} refused {what} (SQLSTATE {state or 'unknown'}); the log of "
            "this node has its words"
        ) from None


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:500]
