"""What a party has told of its rows so far, and what it tells when it is asked again.

Sums over sets of rows that overlap can be subtracted from each other. What can be had from all of
them are sums over *atoms*: rows that were in the same group each time. So the rules of
`policy.row_rules` and `levels` hold for atoms, whatever the server asks for. Where the node keeps a
privacy ledger, they hold over all runs, and the entry is on disk before the step answers; where
tables lie in memory, over the run, whose state the server cannot write.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.policy.limits import min_rows
from flwr_vertical.policy.row_rules import Judged, LabelSet, RowHistory, judge
from flwr_vertical.policy.run import RunLedger
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.levels import LevelAtoms, level_codes

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_KEPT = "node.products."
_ATOMS, _VECTORS = _KEPT + "atoms", _KEPT + "vectors"
_LABELS, _SIZES, _KNOWN = _KEPT + "labels", _KEPT + "label-sizes", _KEPT + "label-known"
_ATTEMPTS, _COMMITTED = _KEPT + "attempts", _KEPT + "committed"

COMMITMENT_BYTES = 32
_ATTEMPT_BYTES = 16


class ToldRows:
    """The rules of one party on rows, vectors and columns of few values.

    All columns count as one: sums of other columns over other rows are still sums over the same
    people, and what a party knows of one column may help with another.

    Parameters
    ----------
    party : Party
        Whose rows they are.
    purpose : str
        What the products are for.
    at_least : int, default 0
        Fewest rows of a set that may be told of, if more than the rule (`limits.min_rows`); where
        the party's policy states ``min-rows``, that holds.
    label_sets : int, default 1
        With how many different sets of vectors of the server the columns are multiplied in a run.

    Attributes
    ----------
    minimum : int or None
        The party's own minimum of rows; None where the default holds.
    """

    def __init__(self, party: Party, purpose: str, at_least: int = 0, label_sets: int = 1) -> None:
        self._party, self._name, self._state = party, party.name, party.state
        self._purpose, self._at_least, self._label_sets = purpose, at_least, label_sets
        # The owner of the data decides: the policy goes before what a strategy says.
        self.minimum: int | None = party.policy.min_rows

    def commit(self, commitment: bytes) -> None:
        """Keep what the server commits to for its vectors, and refuse another one later.

        Raises
        ------
        ProtocolError
            If the server has committed to others in this run.
        """
        kept = list(self._state.get(_COMMITTED, []))
        if commitment in kept:
            return
        if len(commitment) != COMMITMENT_BYTES:
            raise ProtocolError(
                f"party {self._name!r}: products with vectors of the server need its commitment to "
                f"them, {COMMITMENT_BYTES} bytes, got {len(commitment)}"
            )
        if len(kept) >= self._label_sets:
            raise ProtocolError(
                f"party {self._name!r}: the server's vectors (labels) differ from those that it "
                f"committed to in this run; this method multiplies with {self._label_sets} set(s) "
                "of vectors. Start another run for other labels"
            )
        self._state[_COMMITTED] = [*kept, commitment]

    def admit(
        self,
        held: HeldColumns,
        group: Indices,
        n_groups: int,
        missing: Flags | None = None,
        n_vectors: int = 0,
        attempt: bytes = b"",
        commitment: bytes | None = b"",
        recognised: bytes = b"",
        private: bool = False,
    ) -> Flags:
        """Decide what may be told, and note it.

        Parameters
        ----------
        held : HeldColumns
            The columns.
        group : numpy.ndarray of shape (n_samples,)
            Number of each row's group, -1 for rows in none.
        n_groups : int
            How many groups there are.
        missing : numpy.ndarray of shape (n_groups,), bool, optional
            Groups in which the party's rows are not to be told of.
        n_vectors : int
            Vectors of the server that the columns are multiplied with.
        attempt : bytes
            Name of the attempt, if there are vectors.
        commitment : bytes
            Of the server to its vectors; None if they are such as the server does not know.
        recognised : bytes
            What tells the vectors from others over runs (`recognised`); without, the privacy ledger
            counts them as new.
        private : bool, default False
            The sums are differentially private: their noise covers what they add up to, and rare
            levels, and what a party refused for these would itself tell of its values.

        Returns
        -------
        numpy.ndarray of shape (n_groups, n_columns), bool
            True where nothing of a column may be told of a group: the party has none of its rows
            (or is to leave them out), or the column has a level that is too rare there. A party
            with fewer rows than its minimum tells nothing at all.

        Raises
        ------
        DataError
            If it has some rows of a group and not all.
        PolicyError
            If a set of rows is too small for what is asked for, or the vectors are too many.
        ProtocolError
            If an attempt is used twice, or the vectors are not those committed to.
        """
        group = np.asarray(group, dtype=np.int64)
        if group.shape != (held.n_samples,) or group.max(initial=-1) >= n_groups:
            raise ProtocolError(
                f"party {self._name!r}: group has shape {group.shape} and numbers up to "
                f"{group.max(initial=-1)}; expected ({held.n_samples},) and less than {n_groups}"
            )
        n_columns = held.values.shape[1]
        absent = self._absent(held, group, n_groups, missing)
        own = group[held.rows]
        own[own >= 0] = np.where(absent[own[own >= 0]], -1, own[own >= 0])
        withheld = np.repeat(absent[:, None], n_columns, axis=1)
        label = self._label(n_vectors, attempt, commitment, recognised)
        attempts = self._attempts(attempt) if n_vectors else None
        fewest = max(self._at_least, min_rows(n_columns, n_vectors if commitment else 0))
        if len(held.rows) < (fewest if self.minimum is None else self.minimum):
            withheld[:] = True
        elif private:
            pass
        elif self._party.privacy_ledger is not None:
            withheld |= self._over_runs(
                self._party.privacy_ledger, held, own, n_groups, label, attempt
            )
        else:
            withheld |= self._within_run(held, own, n_groups, label)
        if attempts is not None:
            self._state[_ATTEMPTS] = attempts
        return withheld

    def _absent(
        self, held: HeldColumns, group: Indices, n_groups: int, missing: Flags | None
    ) -> Flags:
        """Return in which groups the party tells of no row."""
        rows = np.bincount(group[group >= 0], minlength=n_groups)
        own = group[held.rows]
        mine = np.bincount(own[own >= 0], minlength=n_groups)
        absent: Flags = mine == 0
        if missing is not None:
            absent = absent | np.asarray(missing, dtype=bool)
        # Else products with another party's column would be sums over the rows that both have,
        # and these may be few.
        partly = np.flatnonzero(~absent & (mine < rows))
        if len(partly):
            g = int(partly[0])
            raise DataError(
                f"party {self._name!r}: it has {mine[g]} of the {rows[g]} rows of group {g}, and "
                "products are told of groups whose rows a party has all; put rows with the same "
                "blocks missing into one group, or count this party's block as missing there"
            )
        return absent

    def _attempts(self, attempt: bytes) -> list[bytes]:
        """Return all attempts after this one."""
        used = list(self._state.get(_ATTEMPTS, []))
        mark = hashlib.sha256(attempt).digest()
        if len(attempt) < _ATTEMPT_BYTES or mark in used:
            raise ProtocolError(
                f"party {self._name!r}: an attempt of products with vectors has a name of its "
                f"own, at least {_ATTEMPT_BYTES} random bytes; this one was used before: its pad "
                "would open an equation"
            )
        return [*used, mark]

    def _label(
        self, n_vectors: int, attempt: bytes, commitment: bytes | None, recognised: bytes
    ) -> tuple[bytes, LabelSet] | None:
        """Return what tells the vectors from others, and how they count."""
        if not n_vectors:
            return None
        # New ones at each attempt; asked again after an answer was lost, they are the same.
        new = b"attempt " + hashlib.sha256(attempt).digest()
        if commitment is None:
            return new, LabelSet(n_vectors, False)
        self.commit(commitment)
        if self._party.privacy_ledger is None:
            return commitment, LabelSet(n_vectors)
        return recognised or new, LabelSet(n_vectors)

    def _over_runs(
        self,
        ledger: RunLedger,
        held: HeldColumns,
        own: Indices,
        n_groups: int,
        label: tuple[bytes, LabelSet] | None,
        attempt: bytes,
    ) -> Flags:
        """Have the ledger judge a request, and write it down."""
        codes = self._codes(held)
        n_columns = held.values.shape[1]
        at = self.own_rows(held)
        rows = self._party.rows_in_ledger(ledger)
        group = np.full(len(rows), -1, dtype=np.int64)
        group[at] = own

        def decide(judged: Judged, atom: Indices) -> Flags:
            return _level_atoms(judged, atom[at]).withheld(codes, n_groups, n_columns, self.minimum)

        commitment, labels, streams = b"", LabelSet(0), {}
        if label is not None:
            commitment, labels = label
            # The pads of an attempt hide one answer, which follows from what is asked.
            content = self._party.services.asked() + _digest_of(held, n_groups)
            streams[f"pads of {attempt.hex()}"] = content
        told = ledger.check_and_note_rows(
            group,
            self._at_least,
            rows=rows,
            n_vectors=labels.n_vectors,
            known=labels.known,
            commitment=commitment,
            n_columns=n_columns,
            decide=decide,
            about=_digest_of(held, n_groups, codes, np.argsort(at)),
            streams=streams,
            what=f"sums of {n_columns} column(s) over {n_groups} group(s) of rows "
            f"({self._purpose})",
        )
        assert told.answer is not None
        return told.answer.reshape(n_groups, n_columns).astype(bool)

    def _within_run(
        self,
        held: HeldColumns,
        own: Indices,
        n_groups: int,
        label: tuple[bytes, LabelSet] | None,
    ) -> Flags:
        """Judge a request by what was told in this run, and keep it in the state."""
        kept = [self._state.get(key, []) for key in (_LABELS, _SIZES, _KNOWN)]
        sets = [
            (bytes(name), LabelSet(int(n), bool(known)))
            for name, n, known in zip(*kept, strict=True)
        ]
        number = None
        if label is not None:
            known = {name: i for i, (name, _) in enumerate(sets, 1)}
            number = known.get(label[0], len(sets) + 1)
            sets = sets if label[0] in known else [*sets, label]
        before = RowHistory.unpack(
            np.asarray(self._state.get(_ATOMS, np.zeros(held.n_samples)), dtype=np.int64),
            np.asarray(self._state.get(_VECTORS, np.zeros(0)), dtype=np.int64),
            {i: found for i, (_, found) in enumerate(sets, 1)},
        )
        group = np.full(held.n_samples, -1, dtype=np.int64)
        group[held.rows] = own
        n_columns = held.values.shape[1]
        judged = judge(
            f"party {self._name!r}",
            self._party.policy,
            before,
            group,
            number,
            n_columns=n_columns,
            at_least=self._at_least,
        )
        self._state[_ATOMS] = judged.refined.atom.astype(np.int32)
        self._state[_VECTORS] = judged.vectors.pack()
        self._state[_LABELS] = [name for name, _ in sets]
        self._state[_SIZES] = [found.n_vectors for _, found in sets]
        self._state[_KNOWN] = [int(found.known) for _, found in sets]
        atoms = _level_atoms(judged, judged.refined.atom[held.rows])
        return atoms.withheld(self._codes(held), n_groups, n_columns, self.minimum)

    def own_rows(self, held: HeldColumns) -> Indices:
        """Return which of the own rows the columns are of, shape (n_held,).

        Raises
        ------
        ProtocolError
            If the columns do not say so, and their numbers are no aligned ones.
        """
        if not len(held.rows):
            return np.zeros(0, dtype=np.int64)
        if held.own is not None:
            return np.asarray(held.own, dtype=np.int64)
        if held.n_samples != self._party.n_samples:
            raise ProtocolError(
                f"party {self._name!r}: its columns are numbered among {held.n_samples} samples, "
                f"and {self._party.n_samples} are aligned; `HeldColumns.own` has to say which of "
                "the own rows they are, for the privacy ledger"
            )
        found: Indices = self._party.rows_of(held.rows)[1]
        return found

    def _codes(self, held: HeldColumns) -> dict[int, Indices]:
        """Return the levels of columns of few values."""
        # By the columns themselves: others may have come in their place.
        cache, key = self._party.cache, f"{_KEPT}codes {self._purpose}"
        if key not in cache or cache[key][0] is not held.values:
            codes = {j: level_codes(held.values[:, j]) for j in range(held.values.shape[1])}
            found = {j: code for j, code in codes.items() if code is not None}
            cache[key] = held.values, found
        of_column: dict[int, Indices] = cache[key][1]
        return of_column


def _level_atoms(judged: Judged, of_row: Indices) -> LevelAtoms:
    refined = judged.refined
    return LevelAtoms(of_row, refined.parent, refined.group, judged.n_known)


def _digest_of(
    held: HeldColumns,
    n_groups: int,
    codes: Mapping[int, Indices] | None = None,
    order: Indices | None = None,
) -> bytes:
    """Return a digest of which columns are asked for, and of their levels in an order of rows."""
    codes = codes or {}
    asked = held.values.shape[1], held.names, n_groups, sorted(codes)
    found = hashlib.sha256(repr(asked).encode())
    for j in sorted(codes):
        found.update(np.ascontiguousarray(codes[j][order], dtype=np.int64).tobytes())
    return found.digest()


__all__ = ["COMMITMENT_BYTES", "ToldRows"]
