"""What a party has told of its rows so far, and what it tells when it is asked again.

Sums over sets of rows that overlap can be subtracted from each other. What can be had from all of
them are sums over *atoms*: rows that were in the same group each time. So a party keeps, for each
row, the number of its atom, and the rules of `row_groups` and `levels` hold for atoms, whatever the
server asks for. All of it is kept where the server cannot write.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.node import Party
from flwr_vertical.node.config import MIN_ROWS
from flwr_vertical.products.atoms import refine
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.levels import LevelHistory
from flwr_vertical.products.row_groups import max_vectors, min_rows

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_KEPT = "node.products."
_ATOMS, _ATTEMPTS = _KEPT + "atoms", _KEPT + "attempts"
_VECTORS, _KNOWN = _KEPT + "vectors", _KEPT + "known"
_COMMITTED, _COUNTED = _KEPT + "committed", _KEPT + "counted"

COMMITMENT_BYTES = 32
_ATTEMPT_BYTES = 16


class ToldRows:
    """The rules of one party on rows, vectors and columns of few values.

    Parameters
    ----------
    party : Party
        Whose rows they are.
    purpose : str
        What the products are for.
    at_least : int, optional
        Fewest rows of a set that may be told of (default: `row_groups.min_rows`); ``min-rows`` of
        the node config replaces it.
    label_sets : int, default 1
        With how many different sets of vectors of the server the columns are multiplied in a run.

    Attributes
    ----------
    minimum : int or None
        The party's own minimum of rows; None where the default holds.
    """

    def __init__(
        self, party: Party, purpose: str, at_least: int | None = None, label_sets: int = 1
    ) -> None:
        self._name, self._state = party.name, party.state
        # The owner of the data decides: the node config goes before what a strategy says.
        self.minimum: int | None = party.services.node_config.get(MIN_ROWS, at_least)
        self._levels = LevelHistory(party, purpose, self.minimum)
        self._label_sets = label_sets

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
        private : bool, default False
            The sums are differentially private. Then no column is withheld for its values: noise
            hides rare levels, and that a column is withheld would tell of them.

        Returns
        -------
        numpy.ndarray of shape (n_groups, n_columns), bool
            True where nothing of a column may be told of a group: the party has none of its rows
            (or is to leave them out), or the column has a level that is too rare there. A party
            with fewer rows than its minimum tells nothing at all.

        Raises
        ------
        DataError
            If it has some rows of a group and not all, or a set of rows is too small for what is
            asked for.
        ProtocolError
            If an attempt is used twice, or the vectors are not those committed to.
        """
        group = np.asarray(group, dtype=np.int64)
        if group.shape != (held.n_samples,) or group.max(initial=-1) >= n_groups:
            raise ProtocolError(
                f"party {self._name!r}: group has shape {group.shape} and numbers up to "
                f"{group.max(initial=-1)}; expected ({held.n_samples},) and less than {n_groups}"
            )
        attempts, counted, vectors, known = self._vectors(n_vectors, attempt, commitment)
        n_columns = held.values.shape[1]
        needed = min_rows(n_columns, known) if self.minimum is None else self.minimum
        absent = self._absent(held, group, n_groups, missing)
        own = group[held.rows]
        own[own >= 0] = np.where(absent[own[own >= 0]], -1, own[own >= 0])
        withheld = np.repeat(absent[:, None], n_columns, axis=1)
        if len(held.rows) < needed:
            self._state[_ATTEMPTS] = attempts
            withheld[:] = True
            return withheld
        atoms = self._refined(held, own, n_groups, needed, vectors)
        if not private:
            withheld |= self._levels.refine(held, own, n_groups, known)
        self._state[_ATOMS], self._state[_ATTEMPTS] = atoms.astype(np.int32), attempts
        self._state[_VECTORS], self._state[_KNOWN] = vectors, known
        self._state[_COUNTED] = counted
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

    def _refined(
        self, held: HeldColumns, own: Indices, n_groups: int, needed: int, vectors: int
    ) -> Indices:
        """Return the atoms of all samples after this request; refuse it if one is too small."""
        kept = np.array(self._state.get(_ATOMS, np.zeros(held.n_samples)), dtype=np.int64)
        atoms = refine(kept[held.rows], own, n_groups)
        sizes = np.bincount(atoms)[1:]
        smallest = int(sizes.min()) if len(sizes) else needed
        if smallest < needed:
            raise DataError(
                f"party {self._name!r}: what is asked for would tell of {smallest} of its rows "
                f"alone, and of fewer than {needed} nothing is told; merge small groups of rows or "
                "leave them out"
            )
        if vectors and vectors > max_vectors(smallest):
            raise DataError(
                f"party {self._name!r}: {vectors} vectors in all are too many for a set of "
                f"{smallest} of its rows, at most {max_vectors(smallest)} tell nothing of one row"
            )
        kept[held.rows] = atoms
        return kept

    def _vectors(
        self, n_vectors: int, attempt: bytes, commitment: bytes | None
    ) -> tuple[list[Any], list[Any], int, int]:
        """Return attempts, what is counted, vectors and those of them that the server knows."""
        used, counted = list(self._state.get(_ATTEMPTS, [])), list(self._state.get(_COUNTED, []))
        vectors, known = int(self._state.get(_VECTORS, 0)), int(self._state.get(_KNOWN, 0))
        if not n_vectors:
            return used, counted, vectors, known
        if commitment is not None:
            self.commit(commitment)
        mark = hashlib.sha256(attempt).digest()
        if len(attempt) < _ATTEMPT_BYTES or mark in used:
            raise ProtocolError(
                f"party {self._name!r}: an attempt of products with vectors has a name of its "
                f"own, at least {_ATTEMPT_BYTES} random bytes; this one was used before: its pad "
                "would open an equation"
            )
        used.append(mark)
        if commitment is None or commitment not in counted:  # the same again tell nothing new
            vectors += n_vectors
        if commitment is not None and commitment not in counted:
            counted.append(commitment)
            known += n_vectors
        return used, counted, vectors, known
