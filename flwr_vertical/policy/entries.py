"""The ledger's book: runs and what was opened in them, each entry marked by all before."""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from flwr_vertical.errors import LedgerError, ProtocolError
from flwr_vertical.policy.file import damaged

CLOCK_TOLERANCE = 60.0
"""Seconds by which a clock may be set back: those that time servers correct."""

_COLUMNS = (
    "run, at, kind, receiver, what, n_rows, smallest, n_vectors, bits, epsilon, delta, colluding"
)

_REAL = {"at", "bits", "epsilon", "delta"}


@dataclass(frozen=True)
class Entry:
    """Something that was told.

    Parameters
    ----------
    kind : str
        ``"rows"``, ``"bits"``, ``"predictions"``, ``"epsilon"``, ``"ids"`` or ``"refused"``.
    receiver : str
        To whom.
    what : str
        In words.
    n_rows : int
        How many own rows it is about.
    smallest : int
        Rows of the smallest set that was told of; 0 where that does not apply.
    n_vectors : int
        Vectors of the server that rows were multiplied with.
    bits : float
        Of each of these rows.
    epsilon, delta : float
        Of differential privacy.
    colluding : str
        Who together could see more than that.
    """

    kind: str
    receiver: str
    what: str
    n_rows: int = 0
    smallest: int = 0
    n_vectors: int = 0
    bits: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0
    colluding: str = ""


class Book:
    """Runs and entries within one transaction.

    Parameters
    ----------
    connection : sqlite3.Connection
        Open.
    path : Path
        The file, for errors.
    who : str
        The node, for errors.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, who: str) -> None:
        self._connection, self._path, self._who = connection, path, who

    def check_clock(self, now: float) -> None:
        """Raise if an entry is later than now.

        Raises
        ------
        LedgerError
            Says by how much.
        """
        last = self._connection.execute(
            "SELECT max((SELECT coalesce(max(at), 0) FROM entries),"
            " (SELECT coalesce(max(began), 0) FROM runs))"
        ).fetchone()[0]
        if now < last - CLOCK_TOLERANCE:
            raise LedgerError(
                f"{self._who}: the clock of this machine is {last - now:,.0f} s before the last "
                f"entry of the privacy ledger {self._path}, so nothing leaves: entries could not "
                "be put in order. Set the clock right"
            )

    def run(self, token: str) -> int:
        """Return the number of a run.

        Raises
        ------
        ProtocolError
            If it was not begun.
        """
        row = self._connection.execute("SELECT id FROM runs WHERE token = ?", (token,)).fetchone()
        if row is None:
            raise ProtocolError(f"{self._who}: the privacy ledger has no run {token!r} yet")
        return int(row[0])

    def add(self, run: int, at: float, entry: Entry) -> None:
        """Write an entry."""
        # As SQLite gives them back, so that the mark can be checked: 12 bits would come as 12.0.
        values = tuple(
            float(value) if name in _REAL else value
            for name, value in zip(_COLUMNS.split(", "), (run, at, *astuple(entry)), strict=True)
        )
        row = self._connection.execute(
            "SELECT mark FROM entries ORDER BY id DESC LIMIT 1"
        ).fetchone()
        mark = _mark(b"" if row is None else row[0], values)
        self._connection.execute(
            f"INSERT INTO entries ({_COLUMNS}, mark) VALUES ({', '.join('?' * 13)})",
            (*values, mark),
        )

    def check_marks(self) -> None:
        """Raise if entries were changed, or some in the middle are gone.

        Raises
        ------
        LedgerError
            Names the entry.
        """
        mark = b""
        rows = self._connection.execute(f"SELECT {_COLUMNS}, mark, id FROM entries ORDER BY id")
        for *values, found, number in rows:
            mark = _mark(mark, tuple(values))
            if mark != found:
                raise damaged(self._path, self._who, f"entry {number} is not what was written")

    def epsilon(self) -> tuple[float, float, int]:
        """Return epsilon and delta spent in all, and how many releases spent them."""
        row = self._connection.execute(
            "SELECT coalesce(sum(epsilon), 0), coalesce(sum(delta), 0), count(*) FROM entries"
            " WHERE kind = 'epsilon'"
        ).fetchone()
        return float(row[0]), float(row[1]), int(row[2])

    def count(self, run: int, kind: str) -> tuple[int, int]:
        """Return how many entries of a kind a run has, and the sum of their rows."""
        row = self._connection.execute(
            "SELECT count(*), coalesce(sum(n_rows), 0) FROM entries WHERE run = ? AND kind = ?",
            (run, kind),
        ).fetchone()
        return int(row[0]), int(row[1])


def _mark(before: bytes, values: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(before + repr(values).encode(), digest_size=16).digest()


def add_run(
    connection: sqlite3.Connection,
    token: str,
    name: str,
    strategy: str,
    settings: Mapping[str, Any],
    now: float,
    greetings: int = 1,
) -> None:
    """Write a run, or that it has greeted again."""
    connection.execute(
        "INSERT INTO runs (token, name, strategy, settings, began, greetings)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token) DO UPDATE SET greetings = greetings + 1",
        (token, name, strategy, json.dumps(dict(settings), default=str), now, greetings),
    )


def has_run(connection: sqlite3.Connection, token: str) -> bool:
    """Whether a run is written already."""
    row = connection.execute("SELECT 1 FROM runs WHERE token = ?", (token,)).fetchone()
    return row is not None


def note_stream(
    connection: sqlite3.Connection, run: int, name: str, content: bytes, who: str
) -> None:
    """Write what a key stream hides; see `PrivacyLedger.note_stream`."""
    key, tag = digest_of("stream", name), digest_of("content", content)
    row = connection.execute("SELECT content FROM streams WHERE name = ?", (key,)).fetchone()
    if row is not None and row[0] != tag:
        raise ProtocolError(
            f"{who}: a key stream of this run hides one content only, and other content was to be "
            "hidden by it; start the run again, which draws new keys"
        )
    connection.execute("INSERT OR IGNORE INTO streams VALUES (?, ?, ?)", (key, tag, run))


def digest_of(*parts: object) -> bytes:
    """Return a digest of parts, each with its length; 16 bytes."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()
