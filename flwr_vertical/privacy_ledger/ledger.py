"""`PrivacyLedger`: what a node has told so far, over runs, and whether it may tell more.

Each method checks what is asked for against the node's policy and all that left before, and writes
it down. When it returns the entry is on disk, so a step calls it before it answers. What is asked
again, with the same content, costs nothing: a node that died between entry and answer repeats it.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import AnyArray, Array, Integers, Ring
from flwr_vertical.errors import LedgerError, PolicyError, ProtocolError
from flwr_vertical.policy.record import Policy
from flwr_vertical.privacy_ledger import budgets, entries
from flwr_vertical.privacy_ledger.database import check_whole, create, reading, transaction
from flwr_vertical.privacy_ledger.row_history import (
    LedgerRows,
    OpenedRows,
    ToldColumns,
    columns_told,
    located,
)
from flwr_vertical.privacy_ledger.row_identities import Contents, OwnRows, places, secrets_of
from flwr_vertical.privacy_ledger.rules import Judged
from flwr_vertical.privacy_ledger.stored_arrays import Arrays

_PATIENCE = 30.0
_MOST_REFUSALS = 20  # written down for a run: a server that asks for ever must not fill the disk

HELD_BY_ALL = "the server and any party of the run, which hold the group seed"
"""Who could see the own columns of sums that were opened by private products."""


Decision = Callable[[Judged, Integers, Callable[..., ToldColumns]], AnyArray]
"""Of a request that is allowed, each own row's atom, and `columns_told` of these rows."""


class PrivacyLedger:
    """What left a node, on its own disk."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        party: str,
        policy: Policy | None = None,
        *,
        clock: Callable[[], float] = time.time,
        patience: float = _PATIENCE,
    ) -> None:
        self.path = Path(path)
        self.party = party
        self.policy = Policy() if policy is None else policy
        self._who = f"party {party!r}"
        self._clock, self._patience = clock, patience
        if not self.path.exists():
            create(self.path, party, self._who)
        with self._transaction() as connection:
            check_whole(connection, self.path, self._who)
            self._secret = entries.get_meta(connection, "secret")
            owner = entries.get_meta(connection, "party")
        self._is_checked = True
        if owner != party:
            raise LedgerError(
                f"{self._who}: the privacy ledger {self.path} belongs to party {owner!r}, so "
                "nothing leaves; have 'output' of the node config name a folder of this party's own"
            )

    def rows(self, ids: "pd.Index[Any]", frame: pd.DataFrame | None = None) -> OwnRows:
        """Return own rows as this ledger knows them."""
        return OwnRows.of(ids, self._secret, frame, self._who)

    def row_secrets(self, rows: OwnRows, at: Integers) -> tuple[Ring, bytes]:
        """Return secret numbers of rows, and a name of them; see `RunLedger.row_secrets`."""
        return secrets_of(rows.keys[at], self._secret)

    def version_of(self, rows: OwnRows, values: Array) -> bytes:
        """Return a keyed digest of values of rows; see `RunLedger.version_of`."""
        order = np.argsort(rows.keys)
        ordered = np.asarray(values, dtype="<f8")[order]
        return entries.digest_of(
            "values", self._secret, rows.keys[order].tobytes(), ordered.tobytes()
        )

    def rows_of_version(self, version: str, load: Callable[[], OwnRows]) -> OwnRows:
        """Return the own rows, hashed once for each version of the table."""
        name = entries.digest_of("version", version).hex()
        if version:
            with reading(self.path, self._who) as connection:
                if entries.get_meta(connection, "rows") == name:
                    arrays = Arrays(connection, self.path, self._who)
                    keys = arrays.get("own keys", np.uint64)
                    contents = arrays.get("own contents", np.uint32)
                    return OwnRows(keys, contents if len(contents) else None)
        rows = load()
        if version:
            with self._transaction() as connection:
                arrays = Arrays(connection, self.path, self._who)
                none = np.zeros(0, dtype=np.uint32)
                arrays.put("own keys", rows.keys, hashes=True)
                arrays.put(
                    "own contents", none if rows.contents is None else rows.contents, hashes=True
                )
                entries.put_meta(connection, "rows", name)
        return rows

    def begin(
        self,
        run: str,
        name: str,
        strategy: str,
        settings: Mapping[str, Any],
        rows: OwnRows,
        *,
        all_new: bool = False,
    ) -> None:
        """Write down that a run greets this node; a second greeting resets nothing."""
        with self._entry(run) as (connection, _, arrays):
            if not self._is_checked:  # as it was when this process opened it
                check_whole(connection, self.path, self._who)
            self._is_checked = False
            if not all_new:
                self._check_table(arrays, rows)
            entries.add_run(connection, run, name, strategy, settings, self._clock())

    def note_refused(
        self, run: str, name: str, strategy: str, settings: Mapping[str, Any], error: PolicyError
    ) -> None:
        """Write down that the policy forbade a run before it began; nothing is spent."""
        with self._transaction() as connection:
            if not entries.has_run(connection, run):
                entries.add_run(
                    connection, run, name, strategy, settings, self._clock(), greetings=0
                )
        self._note_refusal(run, error)

    def note_ended(self, run: str, step: str, why: str) -> None:
        """Write down at which step this node left a run: it was refused, or failed."""
        self._write_refusal(run, f"step {step!r}: {why}")

    def check_and_note_rows(
        self,
        run: str,
        rows: OwnRows,
        group: npt.ArrayLike,
        at_least: int,
        *,
        n_vectors: int = 0,
        commitment: bytes = b"",
        known: bool = True,
        n_columns: int = 0,
        decide: Decision | None = None,
        about: bytes = b"",
        streams: Mapping[str, bytes] | None = None,
        scope: str = "",
        what: str = "sums over groups of rows",
        receiver: str = "server",
        colluding: str = HELD_BY_ALL,
    ) -> OpenedRows:
        """Tell of sums over groups of own rows, or refuse.

        Whatever is combined of all that was ever opened must describe at least the minimum of rows,
        and be multiplied with few vectors.

        Shapes: group (n_rows,): number of each own row's group, -1 for rows that are not told of.
        """
        own = np.ascontiguousarray(group, dtype=np.int64)
        if own.shape != (len(rows),):
            raise ProtocolError(
                f"{self._who}: expected a group for each of {len(rows)} own rows, got {own.shape}"
            )
        with self._entry(run) as (connection, book, arrays):
            number = book.run(run)
            digest = entries.digest_of(
                "rows", scope, rows.digest, own.view(np.uint8).data, n_vectors, commitment, about
            )
            kept = f"answer {digest.hex()}"
            for name, content in (streams or {}).items():
                entries.note_stream(connection, number, name, content, self._who)
            told = int(np.count_nonzero(own >= 0))
            if self._is_known(connection, digest) and (commitment or not n_vectors):
                entry = entries.Entry(
                    "rows", receiver, f"{what} (again)", told, 0, 0, colluding=colluding
                )
                book.add(number, self._clock(), entry)
                answer = None if decide is None else arrays.get(kept, np.uint8)
                return OpenedRows.nothing_new(answer)
            history = LedgerRows(connection, arrays, self._who, self.policy)
            label = history.label(number, n_vectors, commitment, known)
            found, at, n_new = history.admit(
                rows, own, scope, label, n_columns=n_columns, at_least=at_least
            )
            atom, smallest = found.refined.atom[at], found.refined.smallest_new
            answer = None
            if decide is not None:
                # No other run tells of columns between what is read of them and what is noted.
                columns = partial(columns_told, arrays, rows)
                answer = np.asarray(decide(found, atom, columns), dtype=np.uint8).ravel()
                arrays.put(kept, answer)
            entries.note_known(connection, digest)
            entry = entries.Entry(
                "rows", receiver, what, told, smallest, n_new, colluding=colluding
            )
            book.add(number, self._clock(), entry)
            return OpenedRows(atom, found.n_vectors, smallest, answer)

    def open_bits(
        self,
        run: str,
        rows: OwnRows,
        chosen: npt.ArrayLike,
        bits: float,
        *,
        content: bytes,
        more: float = 0.0,
        predictions: bool = False,
        agreed: bool = False,
        whole: float = inf,
        what: str,
        receiver: str = "server",
        colluding: str = "",
    ) -> None:
        """Tell something of single rows, or refuse.

        However much is told of a row, it is no more than the row holds, until its cells change.

        Shapes: chosen (n_rows,): of which rows. `more`: bits of them that the same answer has in
        further parts; all must be allowed before the first is written down. `whole`: how many
        bits a row holds; where it is `agreed` to, and the policy states no number, ten versions of
        a row may be told whole.
        """
        mask = np.asarray(chosen, dtype=bool)
        if mask.shape != (len(rows),) or not (np.isfinite(bits) and bits >= 0):
            raise ProtocolError(
                f"{self._who}: expected rows of shape ({len(rows)},) and bits of at least 0, got "
                f"{mask.shape} and {bits!r}"
            )
        kind = "predictions" if predictions else "bits"
        with self._entry(run) as (connection, book, arrays):
            number = book.run(run)
            digest = entries.digest_of(kind, rows.digest, mask.tobytes(), content)
            if self._is_known(connection, digest):
                entry = entries.Entry(kind, receiver, f"{what} (again)", int(mask.sum()))
                book.add(number, self._clock(), entry)
                return
            people, at = located(arrays, rows)
            spent = arrays.get(kind, np.float64, len(people)).copy()
            own = np.flatnonzero(mask) if isinstance(at, slice) else at[mask]
            n_rows = len(own)
            before = spent[own]
            contents = None if rows.contents is None else rows.contents[mask]
            if predictions:
                spent[own] += bits
            else:
                spent[own] += self._bits_of_cells(arrays, own, contents, bits, whole)
            budgets.check_bits(
                self._who,
                self.policy,
                bits,
                n_rows,
                (float(before.max(initial=0.0)), float(spent[own].max(initial=0.0))),
                what,
                more=more,
                predictions=predictions,
                default=budgets.VERSIONS * whole if agreed else 0.0,
            )
            arrays.put(kind, spent)
            entries.note_known(connection, digest)
            entry = entries.Entry(kind, receiver, what, n_rows, bits=bits, colluding=colluding)
            book.add(number, self._clock(), entry)

    @staticmethod
    def _bits_of_cells(
        arrays: Arrays, own: Integers, contents: Contents | None, bits: float, whole: float
    ) -> Array:
        """Return how many bits of each row are new: cells tell no more than they hold."""
        n_people = int(own.max(initial=-1)) + 1
        cells = arrays.get("bits: cells", np.uint32, n_people).copy()
        of_cells = arrays.get("bits: of cells", np.float64, n_people).copy()
        if contents is not None and (other := cells[own] != contents).any():
            of_cells[own[other]] = 0.0
            cells[own] = contents
            arrays.put("bits: cells", cells)
        new = np.minimum(bits, np.maximum(whole - of_cells[own], 0.0))
        of_cells[own] += new
        arrays.put("bits: of cells", of_cells)
        return np.asarray(new, dtype=np.float64)

    def spend_epsilon(
        self,
        run: str,
        epsilon: float,
        *,
        release: bytes,
        delta: float = 0.0,
        what: str,
        receiver: str = "server",
    ) -> None:
        """Spend privacy budget on a release with noise, or refuse."""
        if not (epsilon > 0 and 0 <= delta < 1):
            raise ProtocolError(
                f"{self._who}: epsilon must be above 0 and delta in [0, 1), got {epsilon!r}, "
                f"{delta!r}"
            )
        with self._entry(run) as (connection, book, _):
            number = book.run(run)
            digest = entries.digest_of("epsilon", release, epsilon, delta)
            if self._is_known(connection, digest):
                return
            spent, _, releases = book.epsilon()
            budgets.check_epsilon(self._who, self.policy, epsilon, delta, spent, releases, what)
            entries.note_known(connection, digest)
            entry = entries.Entry("epsilon", receiver, what, epsilon=epsilon, delta=delta)
            book.add(number, self._clock(), entry)

    def columns_told(self, run: str, rows: OwnRows, *noted: Any, **group: Any) -> ToldColumns:
        """Return how columns were made that were told of; see `row_history.columns_told`."""
        with self._entry(run) as (_, _, arrays):
            return columns_told(arrays, rows, *noted, **group)

    def note_stream(self, run: str, name: str, content: bytes) -> None:
        """Use a key stream, or a pad, for a content; refuse it for another one."""
        self.note_streams(run, {name: content})

    def note_streams(self, run: str, streams: Mapping[str, bytes]) -> None:
        """Use several key streams, see `note_stream`; all or none."""
        with self._entry(run) as (connection, book, _):
            number = book.run(run)
            for name, content in streams.items():
                entries.note_stream(connection, number, name, content, self._who)

    def note_foreign_ids(
        self, run: str, count: int, n_own: int, sender: str = "server", content: bytes = b""
    ) -> None:
        """Blind IDs of others, or refuse."""
        with self._entry(run) as (connection, book, _):
            number = book.run(run)
            digest = entries.digest_of("ids", run, content)
            if content and self._is_known(connection, digest):
                return
            total = book.count(number, "ids")[1] + count
            budgets.check_foreign_ids(self._who, self.policy, total, n_own)
            if content:
                entries.note_known(connection, digest)
            book.add(
                number, self._clock(), entries.Entry("ids", sender, "IDs of others blinded", count)
            )

    # -- parts of these --------------------------------------------------------------------

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return transaction(self.path, self._who, self._patience)

    @contextmanager
    def _entry(self, run: str) -> Iterator[tuple[sqlite3.Connection, entries.Book, Arrays]]:
        """Open a transaction; a refusal is written down in one of its own."""
        try:
            with self._transaction() as connection:
                book = entries.Book(connection, self.path, self._who)
                book.check_clock(self._clock())
                yield connection, book, Arrays(connection, self.path, self._who)
        except PolicyError as error:
            self._note_refusal(run, error)
            raise

    def _note_refusal(self, run: str, error: PolicyError) -> None:
        self._write_refusal(run, f"{error.key}: asked {error.asked}; allowed {error.allowed}")

    def _write_refusal(self, run: str, what: str) -> None:
        with suppress(LedgerError), self._transaction() as connection:
            book = entries.Book(connection, self.path, self._who)
            number = book.run(run)
            if book.count(number, "refused")[0] < _MOST_REFUSALS:
                book.add(number, self._clock(), entries.Entry("refused", "nobody", what))

    def _is_known(self, connection: sqlite3.Connection, digest: bytes) -> bool:
        found = connection.execute("SELECT 1 FROM known WHERE digest = ?", (digest,)).fetchone()
        return found is not None

    def _check_table(self, arrays: Arrays, rows: OwnRows) -> None:
        people = arrays.get("people", np.uint64)
        if len(people) and len(rows) and not (places(people, rows.keys) >= 0).any():
            raise LedgerError(
                f"{self._who}: none of the {len(rows):,} rows of its table are among the "
                f"{len(people):,} that the privacy ledger {self.path} knows, so it belongs to "
                "another table and nothing leaves; have 'output' of the node config name a folder "
                "of this table's own"
            )
