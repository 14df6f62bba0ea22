"""The ledger's file: SQLite, one transaction at a time, on disk before it counts."""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr_vertical.errors import LedgerDamagedError, LedgerError
from flwr_vertical.privacy_ledger.row_identities import SECRET_LENGTH
from flwr_vertical.privacy_ledger.seals import SCHEMA, add_functions, find_damage, seal
from flwr_vertical.protocol.disk import FILE_MODE
from flwr_vertical.whole_files import atomic_path

SUFFIX = ".privacy-ledger.sqlite"

_APPLICATION = 0x66767031  # "fvp1", in the file's header
_FORMAT = 2
_SYNCHRONOUS = "EXTRA"  # with FULL an entry could come undone if power fails just after it was made

# A message of SQLite that quotes damaged text cannot be decoded.
_ERRORS = (sqlite3.Error, UnicodeDecodeError)

# Of SQLite's errors at statements that are right, those that the file is not the cause of.
_OF_THE_DISK = (
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
)


def create(path: Path, party: str, who: str) -> None:
    """Make an empty ledger; one that is there, whole or not, stays as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            suppress(FileExistsError),  # another process was first
            atomic_path(path, FILE_MODE, fresh=True) as temporary,
            _connected(temporary) as connection,
        ):
            connection.execute("BEGIN")
            for statement in SCHEMA.values():
                connection.execute(statement)
            values = {
                "party": party,
                # 12 random bytes as text: SipHash in pandas takes 16 characters.
                "secret": secrets.token_urlsafe(12)[:SECRET_LENGTH],
            }
            connection.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
            seal(connection)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
            connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise _unwritable(path, who, error) from error


@contextmanager
def transaction(path: Path, who: str, patience: float) -> Iterator[sqlite3.Connection]:
    """Open the ledger for one entry; it is on disk, or nothing is, when the block ends."""
    try:
        with _connected(path, patience) as connection:
            # Takes the lock at once: what is read below is what the entry is made of.
            connection.execute("BEGIN IMMEDIATE")
            try:
                _check_kind(connection, path, who)
                yield connection
            except BaseException:
                if connection.in_transaction:  # SQLite ends it itself where the disk is full
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
    except _ERRORS as error:
        raise _explained(path, who, error, patience) from error


@contextmanager
def reading(path: Path, who: str) -> Iterator[sqlite3.Connection]:
    """Open the ledger to be read alone."""
    try:
        # Whose writer was killed is rolled back by its next reader, who needs to write for that.
        mode = "rw" if os.access(path, os.W_OK) else "ro"
        with _connected(path, 5.0, mode) as connection:
            _check_kind(connection, path, who)
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")  # what is read is one state, whoever writes meanwhile
            yield connection
    except _ERRORS as error:
        raise _explained(path, who, error, 5.0) from error


def check_whole(connection: sqlite3.Connection, path: Path, who: str) -> None:
    """Raise if the file, or a row of any table, is not what was written."""
    if found := find_damage(connection):
        raise damaged(path, who, found)


def damaged(path: Path, who: str, why: str) -> LedgerDamagedError:
    """Return the error of a ledger that cannot be trusted."""
    return LedgerDamagedError(
        f"{who}: the privacy ledger {path} is damaged ({why}), so nothing leaves: what has been "
        "told before is not known. Put back its last copy; only if there is none, and its owner "
        "accepts that all is counted anew, move the file away"
    )


@contextmanager
def _connected(path: Path, patience: float = 5.0, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, timeout=patience, isolation_level=None, uri=True)
    try:
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
        connection.execute("PRAGMA foreign_keys = ON")
        add_functions(connection)
        yield connection
    finally:
        connection.close()


def _check_kind(connection: sqlite3.Connection, path: Path, who: str) -> None:
    """Refuse a file that is no ledger, or one of another format."""
    kind = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if kind != _APPLICATION:
        raise damaged(path, who, "it is empty, or no privacy ledger")
    if version != _FORMAT:
        raise LedgerError(
            f"{who}: the privacy ledger {path} has format {version}, and this version of "
            f"flwr-vertical reads {_FORMAT}; install the version that wrote it, or a newer one. "
            "If no other version wrote it, the file is damaged: put back its last copy"
        )


def _explained(
    path: Path, who: str, error: sqlite3.Error | UnicodeDecodeError, patience: float
) -> LedgerError:
    """Say what an error of SQLite means for a run."""
    if isinstance(error, sqlite3.ProgrammingError):
        raise error  # a statement is wrong, not the file
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerError(
            f"{who}: another process has kept the privacy ledger {path} open for more than "
            f"{patience:g} s, so nothing leaves; is another run making an entry, or a program "
            "that looks at the file? Close it and start the run again"
        )
    # The header of a damaged file may call it read-only, or name a version that may not write.
    if code & 0xFF in _OF_THE_DISK and not (
        code == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK)
    ):
        return _unwritable(path, who, error)
    return damaged(path, who, str(error))


def _unwritable(path: Path, who: str, error: Exception) -> LedgerError:
    reason = getattr(error, "strerror", None) or str(error)
    return LedgerError(
        f"{who}: the privacy ledger {path} cannot be written ({reason}), so nothing leaves; make "
        "room or give access there, or have 'output' name another folder of the same node, with "
        "the ledger moved along"
    )
