"""What a request asks of a party's rows: judged by its privacy ledger."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.node import Party
from flwr_vertical.privacy_ledger.rules import Judged, LabelSet
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.rare_levels import LevelAtoms, level_codes

_KEPT = "node.products."


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


def judged(party: Party, asked: RowRequest, at: Indices, at_least: int) -> Flags:
    """Have the privacy ledger judge a request, and write it down.

    Shapes: at (n_held,): which of the own rows they are; returns (n_groups, n_columns): true where
    a column is withheld; the same whenever the same is asked.
    """
    codes = asked.codes(party.cache)
    rows = party.rows_in_ledger()
    group = np.full(len(rows), -1, dtype=np.int64)
    group[at] = asked.own

    def decide(judged: Judged, atom: Indices) -> Flags:
        return asked.withheld(judged, atom[at], codes, party.policy.min_rows)

    commitment, labels, streams = b"", LabelSet(0), {}
    if asked.label is not None:
        commitment, labels = asked.label
        # The pads of an attempt hide one answer, which follows from what is asked.
        streams[f"pads of {asked.attempt.hex()}"] = party.services.asked() + asked.digest()
    told = party.privacy_ledger.check_and_note_rows(
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
