"""Atoms: the finest sets of rows that opened sums can be combined to, over all runs.

Sums over sets of rows that overlap can be subtracted from each other. Every linear combination of
them is a combination of sums over atoms: rows that were in the same set each time. So it is enough
to keep the number of each row's atom, and to look at the sizes of atoms.

A row whose content has changed since it was told of counts as another one: sums of before and after
differ by the changed rows alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Flags, Integers

_ZERO = 1e-9
_BLOCK = 1 << 16
"""Rows at a time: of 10^8 rows, each array of 64 bits takes 0.8 GB."""


@dataclass(frozen=True)
class Refined:
    """Atoms after rows were told of."""

    # (n_rows,): number of each row's atom, from 1; 0 for rows that nothing was ever told of; as
    # short as whole numbers can be
    atom: Integers
    # parent, group: (n_atoms + 1,): of each atom, the one that it was part of (0: none) and its
    # group now (-1: none). The first entry is that of atom 0.
    parent: Integers
    group: Integers
    size: Integers  # (n_atoms + 1,): how many rows are in it
    is_new: Flags  # (n_atoms + 1,): whether it is another set of rows than its parent
    # The fewest rows that would be told of by their change alone; 0 if there are none
    n_changed_alone: int

    @property
    def smallest_new(self) -> int:
        """Rows of the smallest set that was not told of before; 0 if there is none."""
        sizes = self.size[self.is_new]
        found = [int(sizes.min())] if len(sizes) else []
        found += [self.n_changed_alone] if self.n_changed_alone else []
        return min(found, default=0)


def refine(atoms: Integers, group: Integers, changed: Flags | None = None) -> Refined:
    """Split atoms by the groups of rows that are told of now.

    Shapes: atoms (n_rows,): number of each row's atom, from 1 without gaps; 0 for rows that
    nothing was told of; group (n_rows,): number of each row's group, -1 for rows that are not told
    of now; changed (n_rows,): rows whose content is another one than when they were told of.
    """
    atoms, group = np.asarray(atoms), np.asarray(group)
    n_before = int(atoms.max(initial=0)) + 1
    width = int(group.max(initial=-1)) + 2
    before = _count(atoms, n_before)
    gone = np.zeros(n_before, dtype=np.int64)
    parents = atoms
    if changed is not None:
        again = changed & (group >= 0) & (atoms > 0)
        if again.any():
            # As they were they leave their atom; as they are they are told of for the first time.
            gone = np.bincount(atoms[again], minlength=n_before)
            parents = np.where(again, 0, atoms)
    n_keys = n_before * width
    blocks = [slice(at, at + _BLOCK) for at in range(0, len(atoms), _BLOCK)]
    key = np.empty(len(atoms), dtype=np.min_scalar_type(n_keys))
    for rows in blocks:
        key[rows] = parents[rows].astype(np.int64) * width + group[rows] + 1
    if n_keys <= 4 * len(key) + 1024:  # counting is several times as fast as sorting
        counts = _count(key, n_keys)
        there = np.flatnonzero(counts)
        size = counts[there]
    else:
        there, size = np.unique(key, return_counts=True)
        there = there.astype(np.int64)
    if not len(there) or there[0] != 0:
        there, size = np.concatenate([[0], there]), np.concatenate([[0], size])
    atom = np.empty(len(key), dtype=np.min_scalar_type(len(there)))
    if n_keys <= 4 * len(key) + 1024:
        number = np.zeros(n_keys, dtype=atom.dtype)
        number[there] = np.arange(len(there))
        for rows in blocks:
            atom[rows] = number[key[rows]]
    else:
        for rows in blocks:
            atom[rows] = np.searchsorted(there, key[rows].astype(np.int64))
    parent, own_group = there // width, there % width - 1
    left = (own_group < 0) & (parent > 0)
    size[left] += gone[parent[left]]
    is_new = (parent == 0) | (size != before[parent])
    is_new[0] = False
    lone = gone.copy()
    lone[parent[left]] = 0  # with others of their atom, counted above
    alone = lone[lone > 0]
    # Where all of an atom has changed it stays as it was, and nothing is subtracted from it.
    alone = alone[alone < before[lone > 0]] if len(alone) else alone
    return Refined(
        atom, parent, own_group, size, is_new, int(alone.min()) if len(alone) else 0
    )  # fmt: skip


def told_alone(sets: Integers | Flags, counts: Integers, fewest: int) -> tuple[int, Flags]:
    """Find fewer rows than `fewest` that sums over sets of rows, combined, are over alone.

    Of two sets that are all rows together, but for a few that are in both, these are what the sums
    over both less that over all tell of.

    Shapes: sets (n_kinds, n_sets): which sets the rows of each kind are in; counts (n_kinds,): how
    many rows these are; returns their number, 0 if there are none; returns (n_kinds,): which.
    """
    table, kind = np.unique(np.asarray(sets, dtype=np.float64), axis=0, return_inverse=True)
    size = np.bincount(kind.reshape(-1), counts, len(table)).astype(np.int64)
    few = np.flatnonzero((size > 0) & (size < fewest))
    few = few[np.argsort(-size[few], kind="stable")]
    _, s, vt = np.linalg.svd(table[size >= fewest], full_matrices=True)
    free = vt[int((s > _ZERO * max(s.max(initial=0.0), 1.0)).sum()) :]  # 0 in all large kinds
    found, n = free @ table[few].T, 0
    for j in range(len(few)):  # each combination without as many of the larger kinds as can be
        pivot = n + int(np.abs(found[n:, j]).argmax()) if n < len(found) else -1
        if pivot < 0 or abs(found[pivot, j]) < _ZERO:
            continue
        found[[n, pivot]] = found[[pivot, n]]
        found[n] /= found[n, j]
        rest = np.arange(len(found)) != n
        found[rest] -= np.outer(found[rest, j], found[n])
        n += 1
    best, chosen = 0, np.zeros(len(table), dtype=bool)
    for combined in np.abs(found[:n]) > _ZERO:
        total = int(size[few[combined]].sum())
        if total < fewest and (not best or total < best):
            best, chosen = total, np.isin(np.arange(len(table)), few[combined])
    return best, chosen[kind.reshape(-1)]


def _count(numbers: Integers, n_kinds: int) -> Integers:
    """Return how often each number from 0 comes; shape (n_kinds,)."""
    if n_kinds > _BLOCK:
        return np.bincount(numbers, minlength=n_kinds)
    total = np.zeros(n_kinds, dtype=np.int64)
    for start in range(0, len(numbers), _BLOCK):
        total += np.bincount(numbers[start : start + _BLOCK], minlength=n_kinds)
    return total


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
