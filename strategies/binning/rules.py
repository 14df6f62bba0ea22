"""What a party tells of its bins: the rules on rows, on vectors and on rare levels, by column."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.privacy_ledger.rules import Judged, LabelSet
from flwr_vertical.products.rare_levels import LevelAtoms, counted_vectors
from flwr_vertical.products.told_rows import _ATTEMPTS, ToldRows
from strategies.trees.binning import Codes


class ToldBins(ToldRows):
    """The rules of one party on sums by bin, and on numbers of rows by bin.

    A set of rows is that of the party's own rows with a label, or of those without: no column of
    another party enters a sum, so it need not hold the same rows.
    """

    def admit_bins(
        self,
        bins: Codes,
        n_bins: list[int],
        own: Indices,
        n_vectors: int = 0,
        attempt: bytes = b"",
        commitment: bytes = b"",
        recognised: bytes = b"",
    ) -> Flags:
        """Decide of which columns may be told, and note it; arguments as of `ToldRows.admit`.

        Shapes: bins (n_rows, n_columns): of the rows that are told of; own (n_rows,): which of the
        party's own rows they are; returns (n_columns,): true where a bin is too rare.
        """
        label = self._label(n_vectors, attempt, commitment, recognised)
        attempts = self._attempts(attempt) if n_vectors else None
        if not len(own) or len(own) < self.fewest(sum(n_bins), n_vectors):
            self._party.privacy_ledger.note_nothing("rows")
            withheld = np.ones(len(n_bins), dtype=bool)
        else:
            withheld = self._judged_bins(bins, n_bins, own, label, attempt)
        if attempts is not None:
            self._state[_ATTEMPTS] = attempts
        return withheld

    def _judged_bins(
        self,
        bins: Codes,
        n_bins: list[int],
        own: Indices,
        label: tuple[bytes, LabelSet] | None,
        attempt: bytes,
    ) -> Flags:
        party, rows = self._party, self._party.rows_in_ledger()
        group = np.full(len(rows), -1, dtype=np.int64)
        group[own] = 0
        flags = _Flags(bins, n_bins)

        def decide(judged: Judged, atom: Indices, _: Any) -> Flags:
            refined = judged.refined
            n_vectors = counted_vectors(judged.n_known, judged.n_sets)
            atoms = LevelAtoms(atom[own], refined.parent, refined.group, n_vectors)
            found = atoms.withheld(flags, 1, len(flags), party.policy.min_rows)[0]
            ends = np.cumsum(n_bins).tolist()
            parts = zip([0, *ends], ends, strict=False)
            return np.array([found[a:b].any() for a, b in parts], dtype=bool)

        order = np.argsort(own)
        about = hashlib.sha256(repr(n_bins).encode() + bins[order].tobytes()).digest()
        commitment, labels, streams = b"", LabelSet(0), {}
        if label is not None:
            commitment, labels = label
            # The pads of an attempt hide one answer, which follows from what is asked.
            streams[f"pads of {attempt.hex()}"] = party.services.asked() + about
        told = party.privacy_ledger.check_and_note_rows(
            group,
            self._at_least,
            rows=rows,
            n_vectors=labels.n_vectors,
            known=labels.known,
            commitment=commitment,
            n_columns=sum(n_bins),
            decide=decide,
            about=about,
            streams=streams,
            what=f"sums over {sum(n_bins)} bins of {len(n_bins)} column(s) ({self._purpose})",
        )
        assert told.answer is not None
        return told.answer.astype(bool)


class _Flags(Mapping[int, Indices]):
    """Which rows are in each bin of all columns, made one bin at a time."""

    def __init__(self, bins: Codes, n_bins: list[int]) -> None:
        self._bins = bins
        self._places = [(j, b) for j, width in enumerate(n_bins) for b in range(width)]

    def __getitem__(self, number: int) -> Indices:
        j, b = self._places[number]
        return np.asarray(self._bins[:, j] == b, dtype=np.int64)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._places)))

    def __len__(self) -> int:
        return len(self._places)
