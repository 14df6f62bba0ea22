"""The rules on sets of rows and on vectors, over all runs."""

import secrets
import sqlite3
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.arrays import Arrays
from flwr_vertical.policy.atoms import Refined, refine
from flwr_vertical.policy.record import Policy, key_of
from flwr_vertical.policy.rows import OwnRows, places
from flwr_vertical.policy.vectors import AtomVectors

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ToldRows:
    """What `RowRules.admit` found.

    Parameters
    ----------
    atom : numpy.ndarray of shape (n_rows,)
        Number of each own row's atom, over all runs; 0 for rows that nothing was told of. Empty if
        all of it was told before.
    n_vectors : numpy.ndarray of shape (n_atoms + 1,)
        With how many vectors of the server each atom was multiplied.
    smallest : int
        Rows of the smallest set that was not told of before; 0 if nothing is new.
    """

    atom: Numbers
    n_vectors: Numbers
    smallest: int

    @classmethod
    def nothing_new(cls) -> "ToldRows":
        """Return what is found where all of it was told before."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64), 0)


def located(arrays: Arrays, rows: OwnRows) -> tuple[Any, Numbers]:
    """Return all rows that a ledger knows, the own ones among them now, and where these are.

    Returns
    -------
    people : numpy.ndarray of shape (n_known,), uint64
    at : numpy.ndarray of shape (n_rows,), int64
    """
    people = arrays.get("people", np.uint64)
    at = places(people, rows.keys)
    absent = at < 0
    if absent.any():
        at[absent] = len(people) + np.arange(np.count_nonzero(absent))
        people = np.concatenate([people, rows.keys[absent]])
        arrays.put("people", people, hashes=True)
    return people, at


class RowRules:
    """Decides whether sums over sets of rows may be opened, within one transaction.

    Parameters
    ----------
    connection : sqlite3.Connection
        Open.
    arrays : Arrays
        Of the same ledger.
    who : str
        The node, for errors.
    policy : Policy
        Its limits.
    """

    def __init__(
        self, connection: sqlite3.Connection, arrays: Arrays, who: str, policy: Policy
    ) -> None:
        self._connection, self._arrays, self._who = connection, arrays, who
        self._policy = policy

    def label(self, run: int, n_vectors: int, commitment: bytes) -> int | None:
        """Return the number of vectors of the server, None without any.

        Parameters
        ----------
        run : int
            Number of the run.
        n_vectors : int
            How many they are.
        commitment : bytes
            What tells them from others; without, they count as new.

        Raises
        ------
        ProtocolError
            If the same commitment was to another number of them.
        """
        if not n_vectors:
            return None
        name = commitment or secrets.token_bytes(32)
        row = self._connection.execute(
            "SELECT id, n_vectors FROM labels WHERE commitment = ?", (name,)
        ).fetchone()
        if row is None:
            return self._connection.execute(
                "INSERT INTO labels (commitment, n_vectors, run) VALUES (?, ?, ?)",
                (name, n_vectors, run),
            ).lastrowid
        if row[1] != n_vectors:
            raise ProtocolError(
                f"{self._who}: the server committed to {row[1]} vector(s), and now to {n_vectors} "
                "in the same words"
            )
        return int(row[0])

    def admit(
        self, rows: OwnRows, own: Numbers, scope: str, at_least: int, label: int | None
    ) -> tuple[ToldRows, int]:
        """Refine the atoms by a request, and keep them; or refuse.

        Parameters
        ----------
        rows : OwnRows
            The own rows.
        own : numpy.ndarray of shape (n_rows,)
            Group of each, -1 for none.
        scope : str
            Sums of which columns.
        at_least : int
            The minimum of rows where the policy states none.
        label : int, optional
            See `label`.

        Returns
        -------
        told : ToldRows
        n_vectors : int
            With how many vectors some rows are multiplied that they were not before.

        Raises
        ------
        PolicyError
            Names the key.
        """
        arrays = self._arrays
        people, at = located(arrays, rows)
        n_before = int(arrays.get(f"atoms {scope}", np.int64).max(initial=0))
        before = AtomVectors.unpack(arrays.get(f"vectors {scope}", np.int64), n_before)
        refined, contents = self._refine(rows, own, at, len(people), scope)
        vectors = before.after(refined, label)
        sizes = dict(self._connection.execute("SELECT id, n_vectors FROM labels"))
        totals = vectors.totals(sizes)
        fresh = np.array(
            [
                len(now) > len(before.labels[parent]) if parent else bool(now)
                for now, parent in zip(vectors.labels, refined.parent.tolist(), strict=True)
            ]
        )
        self._check_rows(refined, at_least)
        self._check_vectors(refined, totals, fresh | refined.is_new)
        if refined.is_new.any() or fresh.any():
            arrays.put(f"atoms {scope}", refined.atom)
            arrays.put(f"vectors {scope}", vectors.pack())
        if contents is not None:
            arrays.put(f"contents {scope}", contents, hashes=True)
        n_new = sizes[label] if label is not None and fresh.any() else 0
        return ToldRows(refined.atom[at], totals, refined.smallest_new), n_new

    def _refine(
        self, rows: OwnRows, own: Numbers, at: Numbers, n: int, scope: str
    ) -> tuple[Refined, Any]:
        """Return the atoms of all rows known, and contents where there are others to be kept."""
        atoms = self._arrays.get(f"atoms {scope}", np.int64, n)
        group = np.full(n, -1, dtype=np.int64)
        group[at] = own
        if rows.contents is None:
            return refine(atoms, group), None
        contents = self._arrays.get(f"contents {scope}", np.uint32, n)
        now = contents.copy()
        now[at] = rows.contents
        refined = refine(atoms, group, now != contents)
        kept = np.where(group >= 0, now, contents)
        return refined, None if np.array_equal(kept, contents) else kept

    def _check_rows(self, refined: Refined, at_least: int) -> None:
        needed = at_least if self._policy.min_rows is None else self._policy.min_rows
        smallest = refined.smallest_new
        if not smallest or smallest >= needed:
            return
        why = "with what was opened before"
        if 0 < refined.n_changed_alone == smallest:
            why = "as their cells have changed since sums of them were opened"
        raise PolicyError(
            self._who,
            key_of("min_rows"),
            f"sums that tell of {smallest} of its rows alone, {why}",
            f"sets of at least {needed:,} rows, over all runs",
            "ask for the same rows as before, or for enough others",
        )

    def _check_vectors(self, refined: Refined, totals: Numbers, asked: Flags) -> None:
        most = self._policy.vectors
        limit = np.maximum(refined.size // 10, 1) if most is None else np.full(len(totals), most)
        over = np.flatnonzero(asked & (totals > limit))
        if not len(over):
            return
        worst = over[np.argmin(refined.size[over])]
        rule = "" if most is not None else ", one for ten rows"
        raise PolicyError(
            self._who,
            key_of("vectors"),
            f"{totals[worst]} different vectors of the server, over all runs, with a set of "
            f"{refined.size[worst]} of its rows",
            f"{limit[worst]} with such a set{rule}",
            "the same labels as before are free",
        )
