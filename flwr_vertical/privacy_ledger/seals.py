"""The tables of a ledger's file, each with a seal: how many rows it has, and their checksums' sum.

Every row is written by `write`, which keeps the seal of its table. One bit that changes otherwise
does not fit it any more. Seals have no key: they find damage. They do not find an owner who edits
rows and seals, nor an older copy of the whole file.
"""

import sqlite3
import struct
import zlib
from contextlib import closing
from functools import lru_cache
from typing import Any

SCHEMA = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "runs": """CREATE TABLE runs (
    id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    strategy TEXT NOT NULL, settings TEXT NOT NULL, began REAL NOT NULL, greetings INTEGER NOT NULL
)""",
    "entries": """CREATE TABLE entries (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs (id), at REAL NOT NULL,
    kind TEXT NOT NULL, receiver TEXT NOT NULL, what TEXT NOT NULL, n_rows INTEGER NOT NULL,
    smallest INTEGER NOT NULL, n_vectors INTEGER NOT NULL, bits REAL NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, colluding TEXT NOT NULL
)""",
    "labels": """CREATE TABLE labels (
    id INTEGER PRIMARY KEY, commitment BLOB NOT NULL UNIQUE, n_vectors INTEGER NOT NULL,
    known INTEGER NOT NULL, run INTEGER NOT NULL REFERENCES runs (id)
)""",
    "known": "CREATE TABLE known (digest BLOB PRIMARY KEY) WITHOUT ROWID",
    "streams": """CREATE TABLE streams (
    name BLOB PRIMARY KEY, content BLOB NOT NULL, run INTEGER NOT NULL REFERENCES runs (id)
) WITHOUT ROWID""",
    "arrays": """CREATE TABLE arrays (
    name TEXT PRIMARY KEY, dtype TEXT NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL
)""",
    "seals": """CREATE TABLE seals (
    name TEXT PRIMARY KEY, n INTEGER NOT NULL, total INTEGER NOT NULL
) WITHOUT ROWID""",
}

# Of each sealed table, the column by which `write` finds a row.
_KEYS = {
    "meta": "key",
    "runs": "token",
    "entries": "id",
    "labels": "commitment",
    "known": "digest",
    "streams": "name",
    "arrays": "name",
}


def add_functions(connection: sqlite3.Connection) -> None:
    """Let a connection compute checksums of rows."""
    connection.create_function("checksum", -1, _checksum, deterministic=True)


def write(
    connection: sqlite3.Connection, table: str, key: Any, sql: str, values: tuple[Any, ...]
) -> None:
    """Insert or change the row of a key, and keep the table's seal."""
    where = f"WHERE {_KEYS[table]} = ?"
    n, total = _contents(connection, table, where, key)
    connection.execute(sql, values)
    n_now, total_now = _contents(connection, table, where, key)
    connection.execute(
        "UPDATE seals SET n = n + ?, total = total + ? WHERE name = ?",
        (n_now - n, total_now - total, table),
    )


def seal(connection: sqlite3.Connection) -> None:
    """Seal all tables as they are."""
    for table in _KEYS:
        found = _contents(connection, table)
        connection.execute("INSERT INTO seals VALUES (?, ?, ?)", (table, *found))


def find_damage(connection: sqlite3.Connection) -> str:
    """Return what is wrong with a ledger; "" if nothing is."""
    if found := find_broken_page(connection):
        return found
    if _definitions(connection) != _own_definitions():
        return "its tables are not defined as those of a ledger"
    seals = {name: (n, total) for name, n, total in connection.execute("SELECT * FROM seals")}
    for table in _KEYS:
        n, total = _contents(connection, table)
        n_sealed, total_sealed = seals.get(table, (None, None))
        if n != n_sealed:
            return f"table {table!r} has {n} rows, and {n_sealed} were written"
        if total != total_sealed:
            return f"the rows of table {table!r} are not those that were written"
    return ""


def find_broken_page(connection: sqlite3.Connection) -> str:
    """Return what SQLite itself finds wrong, indexes beside their tables; "" for nothing."""
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return "" if found == "ok" else found.splitlines()[-1]


def _contents(
    connection: sqlite3.Connection, table: str, where: str = "", *values: Any
) -> tuple[int, int]:
    """Return how many rows there are, and the sum of their checksums."""
    row = connection.execute(
        f"SELECT count(*), coalesce(sum({_row_checksum(table)}), 0) FROM {table} {where}", values
    ).fetchone()
    return row[0], row[1]


@lru_cache
def _row_checksum(table: str) -> str:
    """Return what computes the checksum of a row; the data of arrays have one beside them."""
    with closing(_empty()) as connection:
        found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    types = {column[1]: column[2] for column in found if column[1] != "data"}
    # Bytes and numbers: a call with every column as an object of its own takes twice as long.
    exact = " || '|' || ".join(name for name, kind in types.items() if kind != "REAL")
    reals = [name for name, kind in types.items() if kind == "REAL"]
    return f"checksum({', '.join([f'CAST({exact} AS BLOB)', *reals])})"


@lru_cache
def _own_definitions() -> list[tuple[str, ...]]:
    with closing(_empty()) as connection:
        return _definitions(connection)


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for statement in SCHEMA.values():
        connection.execute(statement)
    return connection


def _definitions(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    ).fetchall()


def checksum_of_array(name: str, dtype: str, data: bytes) -> int:
    """Return the checksum that lies beside an array's data."""
    return zlib.crc32(data, zlib.crc32(f"{name} {dtype}".encode()))


def _checksum(row: bytes, *reals: float) -> int:
    """Return a checksum of a row: it finds damage, which is all it is for."""
    return zlib.crc32(struct.pack(f"<{len(reals)}d", *reals), zlib.crc32(row))
