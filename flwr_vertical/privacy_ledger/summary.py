"""What a ledger holds, for its owner: read alone, in tables or as plain values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flwr_vertical.privacy_ledger.database import check_whole, reading
from flwr_vertical.privacy_ledger.entries import Book, get_meta
from flwr_vertical.privacy_ledger.row_sets import AtomVectors
from flwr_vertical.privacy_ledger.stored_arrays import Arrays


@dataclass(frozen=True)
class LedgerSummary:
    """A ledger as its owner sees it."""

    path: str  # The file
    party: str  # Whose it is
    # Where the node stands over all runs: rows known and told of, sets of rows, the smallest of
    # them, the most vectors with one set, bits of the row that most is known of, epsilon
    state: dict[str, float]
    runs: list[dict[str, Any]]  # In the order in which they came
    entries: list[dict[str, Any]]  # In the order in which they came

    @classmethod
    def of(cls, path: Path) -> "LedgerSummary":
        """Read a ledger."""
        who = f"ledger {path.name!r}"
        with reading(path, who) as connection:
            check_whole(connection, path, who)
            book = Book(connection, path, who)
            party = get_meta(connection, "party")
            runs = _rows(
                connection.execute(
                    "SELECT id, name, strategy, settings, began, greetings FROM runs ORDER BY id"
                )
            )
            entries = _rows(
                connection.execute(
                    "SELECT id, run, at, kind, receiver, what, n_rows, smallest, n_vectors, bits,"
                    " epsilon, delta, colluding FROM entries ORDER BY id"
                )
            )
            arrays = Arrays(connection, path, who)
            sizes = dict(connection.execute("SELECT id, n_vectors FROM labels"))
            state = _state(connection, arrays, book, sizes)
        return cls(str(path), party, state, runs, entries)


def _state(connection: Any, arrays: Arrays, book: Book, sizes: dict[int, int]) -> dict[str, float]:
    """Return where the node stands; of the scopes of row sets that which tells most."""
    people = len(arrays.get("people", np.uint64))
    scopes = [
        name.removeprefix("atoms ")
        for (name,) in connection.execute("SELECT name FROM arrays WHERE name LIKE 'atoms %'")
    ]
    told, n_atoms, smallest, vectors = 0, 0, 0, 0
    for scope in scopes:
        atoms = arrays.get(f"atoms {scope}", np.int64)
        counts = np.bincount(atoms)
        if len(counts) < 2:
            continue
        by_atom = AtomVectors.unpack(arrays.get(f"vectors {scope}", np.int64), len(counts) - 1)
        present = counts[1:][counts[1:] > 0]
        told, n_atoms = max(told, int(present.sum())), max(n_atoms, len(present))
        smallest = min(smallest or int(present.min()), int(present.min()))
        vectors = max(vectors, int(by_atom.totals(sizes)[1:].max()))
    epsilon, delta, releases = book.epsilon()
    return {
        "rows": people,
        "rows_told_of": told,
        "sets": n_atoms,
        "smallest_set": smallest,
        "vectors": vectors,
        "prediction_bits": float(arrays.get("predictions", np.float64).max(initial=0.0)),
        "other_bits": float(arrays.get("bits", np.float64).max(initial=0.0)),
        "epsilon": epsilon,
        "delta": delta,
        "releases": releases,
    }


def _rows(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
