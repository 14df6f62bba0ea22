"""Which label vectors the rows of each atom were multiplied with."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Integers
from flwr_vertical.privacy_ledger.row_sets import Refined


@dataclass(frozen=True)
class AtomVectors:
    """Sets of labels by atom."""

    # Of each atom, the numbers of the label sets that its rows were multiplied with; the first
    # entry is that of atom 0
    labels: list[frozenset[int]]

    @classmethod
    def unpack(cls, flat: Integers, n_atoms: int) -> "AtomVectors":
        """Read what `pack` made, for atoms 0 to ``n_atoms``."""
        if not len(flat):
            return cls([frozenset()] * (n_atoms + 1))
        ends = np.cumsum(flat[: n_atoms + 1])
        numbers = flat[n_atoms + 1 :].tolist()
        starts = [0, *ends[:-1].tolist()]
        return cls([frozenset(numbers[a:b]) for a, b in zip(starts, ends.tolist(), strict=True)])

    def pack(self) -> Integers:
        """Return counts of all atoms, then numbers of label sets, atom by atom."""
        counts = [len(found) for found in self.labels]
        numbers = [number for found in self.labels for number in sorted(found)]
        return np.array(counts + numbers, dtype=np.int64)

    def after(self, refined: Refined, label: int | None) -> "AtomVectors":
        """Return those of the atoms that others were split into."""
        more = frozenset() if label is None else frozenset([label])
        empty: frozenset[int] = frozenset()
        out = []
        for parent, group in zip(refined.parent.tolist(), refined.group.tolist(), strict=True):
            before = self.labels[parent] if parent else empty
            out.append(before | more if group >= 0 and not more <= before else before)
        return AtomVectors(out)

    def totals(self, n_vectors: Mapping[int, int]) -> Integers:
        """Return with how many vectors each atom was multiplied."""
        known: dict[frozenset[int], int] = {}
        for found in self.labels:
            if found not in known:
                known[found] = sum(n_vectors[number] for number in found)
        return np.array([known[found] for found in self.labels], dtype=np.int64)
