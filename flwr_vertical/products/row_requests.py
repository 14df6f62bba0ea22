"""What a request asks of a party's rows: judged by its privacy ledger, or by the run's state."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.node import Party
from flwr_vertical.privacy_ledger.rules import Judged, LabelSet, RowHistory, judge
from flwr_vertical.privacy_ledger.run_ledger import RunLedger
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.rare_levels import LevelAtoms, level_codes

# Under a prefix that the server may not write to.
_KEPT = "node.products."
_ATOMS, _VECTORS = _KEPT + "atoms", _KEPT + "vectors"
_LABELS, _SIZES, _KNOWN = _KEPT + "labels", _KEPT + "label-sizes", _KEPT + "label-known"


@dataclass(frozen=True)
class RowRequest:
    """Sums over groups of rows that a party is asked for."""

    held: HeldColumns  # The columns
    own: Indices  # (n_held,): number of each row's group, -1 for rows that are not told of
    n_groups: int  # How many groups there are
    purpose: str  # What the sums are for
    # What tells the vectors that the columns are multiplied with from others, and how they count
    label: tuple[bytes, LabelSet] | None = None
    attempt: bytes = b""  # With vectors, the name of the pads

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.held.values.shape[1])

    def codes(self, cache: dict[str, Any]) -> dict[int, Indices]:
        """Return the levels of columns of few values."""
        # By the columns themselves: others may have come in their place.
        key, values = f"{_KEPT}codes {self.purpose}", self.held.values
        if key not in cache or cache[key][0] is not values:
            codes = {j: level_codes(values[:, j]) for j in range(self.n_columns)}
            cache[key] = values, {j: code for j, code in codes.items() if code is not None}
        of_column: dict[int, Indices] = cache[key][1]
        return of_column

    def withheld(
        self, judged: Judged, of_row: Indices, codes: dict[int, Indices], minimum: int | None
    ) -> Flags:
        """Decide where columns are withheld, given the atom of each row held."""
        refined = judged.refined
        atoms = LevelAtoms(of_row, refined.parent, refined.group, judged.n_known)
        return atoms.withheld(codes, self.n_groups, self.n_columns, minimum)

    def digest(
        self, codes: dict[int, Indices] | None = None, order: Indices | None = None
    ) -> bytes:
        """Return a digest of which columns are asked for, and of their levels in an order."""
        codes = codes or {}
        asked = self.n_columns, self.held.names, self.n_groups, sorted(codes)
        found = hashlib.sha256(repr(asked).encode())
        for j in sorted(codes):
            found.update(np.ascontiguousarray(codes[j][order], dtype=np.int64).tobytes())
        return found.digest()


def judged_over_runs(
    party: Party, ledger: RunLedger, asked: RowRequest, at: Indices, at_least: int
) -> Flags:
    """Have the privacy ledger judge a request, and write it down.

    Shapes: at (n_held,): which of the own rows they are; returns (n_groups, n_columns): true where
    a column is withheld; the same whenever the same is asked.
    """
    codes = asked.codes(party.cache)
    rows = party.rows_in_ledger(ledger)
    group = np.full(len(rows), -1, dtype=np.int64)
    group[at] = asked.own

    def decide(judged: Judged, atom: Indices) -> Flags:
        return asked.withheld(judged, atom[at], codes, party.policy.min_rows)

    commitment, labels, streams = b"", LabelSet(0), {}
    if asked.label is not None:
        commitment, labels = asked.label
        # The pads of an attempt hide one answer, which follows from what is asked.
        streams[f"pads of {asked.attempt.hex()}"] = party.services.asked() + asked.digest()
    told = ledger.check_and_note_rows(
        group,
        at_least,
        rows=rows,
        n_vectors=labels.n_vectors,
        known=labels.known,
        commitment=commitment,
        n_columns=asked.n_columns,
        decide=decide,
        about=asked.digest(codes, np.argsort(at)),
        streams=streams,
        what=f"sums of {asked.n_columns} column(s) over {asked.n_groups} group(s) of rows "
        f"({asked.purpose})",
    )
    assert told.answer is not None
    return told.answer.reshape(asked.n_groups, asked.n_columns).astype(bool)


def judged_within_run(party: Party, asked: RowRequest, at_least: int) -> Flags:
    """Judge a request by what was told in this run, and keep it in the party's state.

    Parameters, result and errors as of `judged_over_runs`.
    """
    state, held = party.state, asked.held
    kept = [state.get(key, []) for key in (_LABELS, _SIZES, _KNOWN)]
    sets = [
        (bytes(name), LabelSet(int(n), bool(known))) for name, n, known in zip(*kept, strict=True)
    ]
    number = None
    if asked.label is not None:
        known = {name: i for i, (name, _) in enumerate(sets, 1)}
        number = known.get(asked.label[0], len(sets) + 1)
        sets = sets if asked.label[0] in known else [*sets, asked.label]
    before = RowHistory.unpack(
        np.asarray(state.get(_ATOMS, np.zeros(held.n_samples)), dtype=np.int64),
        np.asarray(state.get(_VECTORS, np.zeros(0)), dtype=np.int64),
        {i: found for i, (_, found) in enumerate(sets, 1)},
    )
    group = np.full(held.n_samples, -1, dtype=np.int64)
    group[held.rows] = asked.own
    judged = judge(
        f"party {party.name!r}",
        party.policy,
        before,
        group,
        number,
        n_columns=asked.n_columns,
        at_least=at_least,
    )
    state[_ATOMS] = judged.refined.atom.astype(np.int32)
    state[_VECTORS] = judged.vectors.pack()
    state[_LABELS] = [name for name, _ in sets]
    state[_SIZES] = [found.n_vectors for _, found in sets]
    state[_KNOWN] = [int(found.known) for _, found in sets]
    of_row = judged.refined.atom[held.rows]
    return asked.withheld(judged, of_row, asked.codes(party.cache), party.policy.min_rows)
