"""A ledger of format 1, which had no seals, becomes one of format 2; nothing in it is lost."""

import hashlib
import sqlite3

from flwr_vertical.privacy_ledger.seals import SCHEMA, checksum_of_array, find_broken_page, seal

_ENTRY = (
    "run, at, kind, receiver, what, n_rows, smallest, n_vectors, bits, epsilon, delta, colluding"
)


def upgrade(connection: sqlite3.Connection) -> str:
    """Upgrade a ledger within a transaction; returns what is wrong with it, "" if nothing is.

    What that format could tell of damage is checked first. What it could not is sealed as it is.
    """
    if found := find_broken_page(connection):
        return found
    mark = b""  # each entry had one, of all entries up to it
    for *values, own, number in connection.execute(
        f"SELECT {_ENTRY}, mark, id FROM entries ORDER BY id"
    ):
        mark = hashlib.blake2b(mark + repr(tuple(values)).encode(), digest_size=16).digest()
        if mark != own:
            return f"entry {number} is not what was written"
    for name, dtype, data, checksum in connection.execute(
        "SELECT name, dtype, data, checksum FROM arrays"
    ):
        if not isinstance(data, bytes) or checksum != checksum_of_array(name, dtype, data):
            return f"{name} does not have its checksum"
    for table, columns in (("entries", f"id, {_ENTRY}"), ("arrays", "name, dtype, checksum, data")):
        connection.execute(f"ALTER TABLE {table} RENAME TO former")
        connection.execute(SCHEMA[table])
        connection.execute(f"INSERT INTO {table} SELECT {columns} FROM former")
        connection.execute("DROP TABLE former")
    connection.execute(SCHEMA["seals"])
    connection.execute(
        "INSERT INTO meta SELECT 'latest', max((SELECT coalesce(max(at), 0.0) FROM entries),"
        " (SELECT coalesce(max(began), 0.0) FROM runs))"
    )
    seal(connection)
    connection.execute("PRAGMA user_version = 2")
    return ""
