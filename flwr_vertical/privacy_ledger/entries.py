"""The ledger's book: runs, and what was opened in them."""

import hashlib
import json
import shlex
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr_vertical.errors import LedgerError, ProtocolError
from flwr_vertical.privacy_ledger.seals import write

CLOCK_TOLERANCE = 60.0
"""Seconds by which a clock may be set back: those that time servers correct."""

_COLUMNS = (
    "run, at, kind, receiver, what, n_rows, smallest, n_vectors, bits, epsilon, delta, colluding"
)

_REAL = {"at", "bits", "epsilon", "delta"}


@dataclass(frozen=True)
class Entry:
    """Something that was told."""

    # ``"rows"``, ``"bits"``, ``"predictions"``, ``"epsilon"``, ``"ids"``, ``"refused"`` or
    # ``"clock"``
    kind: str
    receiver: str  # To whom
    what: str  # In words
    n_rows: int = 0  # How many own rows it is about
    smallest: int = 0  # Rows of the smallest set that was told of; 0 where that does not apply
    n_vectors: int = 0  # Vectors of the server that rows were multiplied with
    bits: float = 0.0  # Of each of these rows
    epsilon: float = 0.0  # Of differential privacy
    delta: float = 0.0  # Of differential privacy
    colluding: str = ""  # Who together could see more than that


class Book:
    """Runs and entries within one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path, who: str) -> None:
        self._connection, self._path, self._who = connection, path, who

    def check_clock(self, now: float) -> None:
        """Raise if an entry is later than now."""
        last = _latest(self._connection)
        if now < last - CLOCK_TOLERANCE:
            raise LedgerError(
                f"{self._who}: the clock of this machine, {time_text(now)} UTC, is "
                f"{last - now:,.0f} s before the last entry of the privacy ledger {self._path}, of "
                f"{time_text(last)}, so nothing leaves: entries could not be put in order. Set the "
                "clock right. If it is right, and was ahead before: flwr-vertical privacy-ledger "
                f"{shlex.quote(str(self._path))} --repair-clock"
            )

    def repair_clock(self, now: float) -> str:
        """Go on from a clock that was ahead, with all entries; returns the record, "" for none."""
        last = _latest(self._connection)
        if now >= last - CLOCK_TOLERANCE:
            return ""
        what = (
            f"clock repaired by the owner: the last entry was of {time_text(last)}, the clock says "
            f"{time_text(now)} UTC"
        )
        put_meta(self._connection, "latest", repr(now))
        (number,) = self._connection.execute("SELECT count(*) + 1 FROM runs").fetchone()
        token = f"clock repair {number}"
        add_run(self._connection, token, "clock repair", "", {}, now, greetings=0)
        self.add(self.run(token), now, Entry("clock", "nobody", what))
        return what

    def run(self, token: str) -> int:
        """Return the number of a run."""
        row = self._connection.execute("SELECT id FROM runs WHERE token = ?", (token,)).fetchone()
        if row is None:
            raise ProtocolError(f"{self._who}: the privacy ledger has no run {token!r} yet")
        return int(row[0])

    def add(self, run: int, at: float, entry: Entry) -> None:
        """Write an entry."""
        values = tuple(
            float(value) if name in _REAL else value
            for name, value in zip(_COLUMNS.split(", "), (run, at, *astuple(entry)), strict=True)
        )
        (number,) = self._connection.execute(
            "SELECT coalesce(max(id), 0) + 1 FROM entries"
        ).fetchone()
        write(
            self._connection,
            "entries",
            number,
            f"INSERT INTO entries (id, {_COLUMNS}) VALUES ({', '.join('?' * 13)})",
            (number, *values),
        )
        _note_time(self._connection, at)

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
    write(
        connection,
        "runs",
        token,
        "INSERT INTO runs (token, name, strategy, settings, began, greetings)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token) DO UPDATE SET greetings = greetings + 1",
        (token, name, strategy, json.dumps(dict(settings), default=str), now, greetings),
    )
    _note_time(connection, now)


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
    if row is None:
        sql = "INSERT INTO streams VALUES (?, ?, ?)"
        write(connection, "streams", key, sql, (key, tag, run))


def note_known(connection: sqlite3.Connection, digest: bytes) -> None:
    """Write that the same request gets the same answer, for nothing, from now on."""
    write(connection, "known", digest, "INSERT OR IGNORE INTO known VALUES (?)", (digest,))


def get_meta(connection: sqlite3.Connection, key: str) -> str:
    """Return a value of the whole ledger, "" where it has none of that key."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return "" if row is None else str(row[0])


def put_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Write a value of the whole ledger."""
    write(connection, "meta", key, "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _latest(connection: sqlite3.Connection) -> float:
    """Return the latest time of a run or an entry since the clock was repaired."""
    return float(get_meta(connection, "latest") or 0.0)


def _note_time(connection: sqlite3.Connection, at: float) -> None:
    if at > _latest(connection):
        put_meta(connection, "latest", repr(float(at)))


def time_text(seconds: float) -> str:
    """Return a time as a date and time of day, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def digest_of(*parts: object) -> bytes:
    """Return a digest of parts, each with its length; 16 bytes."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes | memoryview) else repr(part).encode()
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()
