"""The history of rows in the ledger: read, judged and kept within one transaction."""

import json
import secrets
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Integers, Ring
from flwr_vertical.counted import counted
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.policy.record import Policy, key_of
from flwr_vertical.privacy_ledger.row_identities import OwnRows, are_first, places
from flwr_vertical.privacy_ledger.row_sets import refine, told_alone
from flwr_vertical.privacy_ledger.rules import Judged, LabelSet, RowHistory, judge
from flwr_vertical.privacy_ledger.seals import write
from flwr_vertical.privacy_ledger.stored_arrays import Arrays

_ATOMS, _SETS = "atoms ", "sets "

SHARED = "with "
"""What a scope begins with that is of rows shared with another party: sums over these sets together
tell of no few rows either, since the same columns are summed over them."""


@dataclass(frozen=True)
class OpenedRows:
    """What was told of a node's own rows, after a request that its ledger allowed."""

    # (n_rows,): number of each own row's atom, over all runs; 0 for rows that nothing was told
    # of. Empty if all of it was told before.
    atom: Integers
    # (n_atoms + 1,): with how many vectors of the server each atom was multiplied
    n_vectors: Integers
    smallest: int  # Rows of the smallest set that was not told of before; 0 if nothing is new
    # What was decided beyond that: the same whenever the same is asked
    answer: AnyArray | None = None

    @classmethod
    def nothing_new(cls, answer: AnyArray | None = None) -> "OpenedRows":
        """Return what is found where all of it was told before."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64), 0, answer)


At = Integers | slice


def located(arrays: Arrays, rows: OwnRows) -> tuple[Any, At]:
    """Return all rows that a ledger knows, the own ones among them now, and where these are.

    Shapes: returns (n_known,); returns (n_rows,), or the slice of the first ones.
    """
    people = arrays.get("people", np.uint64)
    if are_first(people, rows.keys):
        return people, slice(0, len(rows))
    if not len(people):
        arrays.put("people", rows.keys, hashes=True)
        return rows.keys, slice(0, len(rows))
    at = places(people, rows.keys)
    absent = at < 0
    if absent.any():
        at[absent] = len(people) + np.arange(np.count_nonzero(absent))
        people = np.concatenate([people, rows.keys[absent]])
        arrays.put("people", people, hashes=True)
    return people, at


def _put_in(values: AnyArray, at: At, own: AnyArray) -> AnyArray:
    """Return values of all rows with those of the own ones in their places."""
    if isinstance(at, slice) and len(values) == len(own):
        return own
    out = values.copy()
    out[at] = own
    return out


ToldColumns = dict[str, tuple[list[int] | None, Integers]]
"""In words how columns were made, the numbers of those that were told, and each own row's set."""


def columns_told(
    arrays: Arrays,
    rows: OwnRows,
    more: str = "",
    told: Collection[int] | None = None,
    group: Integers | None = None,
) -> ToldColumns:
    """Return how columns were made that were told of, in order; write one more down, if given.

    With the numbers of those of them that were `told` (None: perhaps all), and the number of each
    row's set in which they were, from 1; 0 for rows of which nothing was told.

    Shapes: group (n_rows,): in which rows are told of now, -1 for others; returns (n_rows,).
    """
    noted: dict[str, list[int] | None]
    noted = json.loads(arrays.get("columns told").tobytes() or b"{}")
    before = dict(noted)
    if more:
        noted.setdefault(more, None)
    if told is not None:
        noted[more] = sorted({*(noted[more] or ()), *map(int, told)})
    if noted != before:
        arrays.put("columns told", np.frombuffer(json.dumps(noted).encode(), np.uint8))
    names = {words: f"columns told {number}" for number, words in enumerate(noted)}
    if group is not None:
        people, at = located(arrays, rows)
        sets = arrays.get(names[more], length=len(people))
        asked = _put_in(np.broadcast_to(np.int64(-1), len(people)), at, group)
        refined = refine(sets, asked)
        if refined.is_new.any():
            arrays.put(names[more], refined.atom)
    people = arrays.get("people", np.uint64)
    there = places(people, rows.keys)  # -1, the last, where nothing was told
    return {
        words: (numbers, np.append(arrays.get(names[words], length=len(people)), 0)[there])
        for words, numbers in noted.items()
    }


class LedgerRows:
    """Histories of rows within one transaction."""

    def __init__(
        self, connection: sqlite3.Connection, arrays: Arrays, who: str, policy: Policy
    ) -> None:
        self._connection, self._arrays, self._who = connection, arrays, who
        self._policy = policy

    def label(self, run: int, n_vectors: int, commitment: bytes, known: bool) -> int | None:
        """Return the number of a set of vectors; None where there are none."""
        if not n_vectors:
            return None
        name = commitment or secrets.token_bytes(32)
        row = self._connection.execute(
            "SELECT id, n_vectors FROM labels WHERE commitment = ?", (name,)
        ).fetchone()
        if row is None:
            sql = "INSERT INTO labels (commitment, n_vectors, known, run) VALUES (?, ?, ?, ?)"
            write(self._connection, "labels", name, sql, (name, n_vectors, int(known), run))
            return self.label(run, n_vectors, name, known)
        if row[1] != n_vectors:
            raise ProtocolError(
                f"{self._who}: the server committed to {counted(row[1], 'vector')}, and now to "
                f"{n_vectors} in the same words"
            )
        return int(row[0])

    def admit(
        self, rows: OwnRows, own: Integers, scope: str, label: int | None, **limits: int
    ) -> tuple[Judged, At, int]:
        """Refine the atoms by a request, and keep them; or refuse.

        What is told without a scope is told in all scopes: a scope begins with what was told so
        far, and is refined with it.

        Shapes: own (n_rows,): group of each, -1 for none; returns (n_rows,): where the own rows
        are among all.
        """
        people, at = located(self._arrays, rows)
        alone = self._told_alone(len(people))
        found, n_new = self._admit(rows, own, scope, label, people, at, **limits)
        for other in [] if scope else self._arrays.names(_ATOMS):
            if other != _ATOMS:
                self._admit(rows, own, other.removeprefix(_ATOMS), label, people, at, **limits)
        if scope.startswith(SHARED):  # by itself, without what was told in no scope
            group = _put_in(np.broadcast_to(np.int64(-1), len(people)), at, own)
            before = self._arrays.get(f"{_SETS}{scope}", length=len(people))
            self._arrays.put(f"{_SETS}{scope}", refine(before, group).atom)
        if (now := self._told_alone(len(people))) and not alone:
            raise PolicyError(
                self._who,
                key_of("min_rows"),
                f"sums that tell of {now} of its rows alone, over sets shared with several parties",
                f"sets of at least {self._fewest:,} rows, over all runs",
                "ask for the same rows as before, or leave out one of these parties",
            )
        return found, at, n_new

    @property
    def _fewest(self) -> int:
        stated = self._policy.min_rows
        return min_rows(0, 0) if stated is None else stated

    def _told_alone(self, n_people: int) -> int:
        """Return of how few rows the sets of all scopes tell together; 0 if of none too few."""
        scopes = [self._arrays.get(name, np.int64, n_people) for name in self._arrays.names(_SETS)]
        scopes.append((self._arrays.get(_ATOMS, np.int64, n_people) > 0).astype(np.int64))
        if len(scopes) < 3:  # all rows, and those shared with two parties
            return 0
        kind = np.zeros(n_people, dtype=np.int64)
        for atoms in scopes:
            kind = pd.factorize(kind * (int(atoms.max()) + 1) + atoms)[0]
        first = np.unique(kind, return_index=True)[1]
        sets = [
            atoms[first][:, None] == np.arange(1, int(atoms.max(initial=0)) + 1) for atoms in scopes
        ]
        return told_alone(np.column_stack(sets), np.bincount(kind), self._fewest)[0]

    def _admit(
        self,
        rows: OwnRows,
        own: Integers,
        scope: str,
        label: int | None,
        people: Ring,
        at: At,
        **limits: int,
    ) -> tuple[Judged, int]:
        arrays, known = self._arrays, scope
        if scope and not len(arrays.get(f"{_ATOMS}{scope}")):
            known = ""
        labels = {
            number: LabelSet(n_vectors, bool(known))
            for number, n_vectors, known in self._connection.execute(
                "SELECT id, n_vectors, known FROM labels"
            )
        }
        before = RowHistory.unpack(
            arrays.get(f"{_ATOMS}{known}", length=len(people)),
            arrays.get(f"vectors {known}", np.int64),
            labels,
        )
        group = _put_in(np.broadcast_to(np.int64(-1), len(people)), at, own)
        changed, contents = None, None
        if rows.contents is not None:
            contents = arrays.get(f"contents {known}", np.uint32, len(people))
            now = _put_in(contents, at, rows.contents)
            changed = now != contents
        found = judge(self._who, self._policy, before, group, label, changed=changed, **limits)
        if found.refined.is_new.any() or found.is_multiplied or known != scope:
            arrays.put(f"{_ATOMS}{scope}", found.refined.atom)
            arrays.put(f"vectors {scope}", found.vectors.pack())
        if contents is not None:
            kept = np.where(group >= 0, now, contents)
            if known != scope or not np.array_equal(kept, contents):
                arrays.put(f"contents {scope}", kept, hashes=True)
        n_new = labels[label].n_vectors if label is not None and found.is_multiplied else 0
        return found, n_new
