"""The trees of a batch while they grow: all parties hold the same, the server none of it.

Each party does the same to its own copy: it learns from the arbiter which candidate of each node
won, from the owner of the split which rows go to the left, and numbers nodes as `Grower` does.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Bytes, Flags, Integers, Integers32, Unsigned16
from strategies.trees.binning import Codes, SlotLayout
from strategies.trees.node_sums import Indices

Lines = Integers32

# Columns of the table of nodes.
TREE, NUMBER, PARTY, LEFT, RIGHT, MISSING_LEFT, WEIGHT = range(7)
N_FIELDS = 7
_LEAF = -1


@dataclass
class Batch:
    """Trees of one class that grow together."""

    # (n_trees, n_samples): the line of the table that each row is in: rows of the fit and others
    node: Lines
    # (n_trees, n_samples): how often each tree has each row; 0 of rows that it is not fitted to
    weight: Unsigned16
    # (n_nodes, 7): tree, number in it, party whose split it is (-1: a leaf), lines of what comes
    # after, where missing cells go, rows of the fit by weight
    table: Lines
    # (n_level,): lines of the nodes of the level that grows: tree by tree, children of one parent
    # together
    level: Indices
    parent: Indices  # (n_level,): place of each node's parent in the level before, -1 at roots
    # (n_level,): numbers of the nodes whose sums are made; -1 where they follow from their
    # siblings'
    direct: Indices
    active: Indices  # (n_active,): places in the level of nodes that may be split
    min_child: int  # The fewest distinct rows of the fit in a node

    @classmethod
    def empty(cls) -> "Batch":
        """Return one without trees, to take up what a snapshot holds."""
        none = np.zeros(0, dtype=np.int64)
        return cls(
            np.zeros((0, 0), dtype=np.int32),
            np.zeros((0, 0), dtype=np.uint16),
            np.zeros((0, N_FIELDS), dtype=np.int32),
            none, none, none, none, 1,
        )  # fmt: skip

    @classmethod
    def start(cls, weight: npt.NDArray[np.integer], trees: list[int], min_child: int) -> "Batch":
        """Return the roots; weight (n_trees, n_samples)."""
        n_trees = len(trees)
        table = np.full((n_trees, N_FIELDS), _LEAF, dtype=np.int32)
        table[:, TREE], table[:, NUMBER] = trees, 0
        table[:, MISSING_LEFT], table[:, WEIGHT] = 0, weight.sum(axis=1)
        node = np.tile(np.arange(n_trees, dtype=np.int32)[:, None], (1, weight.shape[1]))
        level = np.arange(n_trees)
        out = cls(
            node, weight.astype(np.uint16), table, level, np.full(n_trees, -1), level, level,
            min_child,
        )  # fmt: skip
        out.active = np.flatnonzero(out._may_split(level))
        return out

    @property
    def n_trees(self) -> int:
        """Trees of the batch."""
        return len(self.node)

    def places(self, chosen: Indices, fit_only: bool = True) -> tuple[Indices, list[int]]:
        """Return rows' places among their trees' chosen nodes, -1 for none; and nodes per tree."""
        first = int(self.table[0, TREE]) if len(self.table) else 0
        step = self._step
        of = (self.table[chosen, TREE] - first) // step
        counts = np.bincount(of, minlength=self.n_trees)
        starts = np.concatenate([[0], np.cumsum(counts)])
        number = np.full(len(self.table), -1, dtype=np.int64)
        number[chosen] = np.arange(len(chosen)) - starts[of]
        at = number[self.node]
        if fit_only:
            at[self.weight == 0] = -1
        return at, counts.tolist()

    def divide(self, party: Indices, missing_left: Indices, left: Flags) -> Indices:
        """Split the active nodes, and go on to the next level.

        Shapes: party (n_active,): whose split it is; -1 of a node that stays a leaf; missing_left
        (n_active,): where rows without the cell go; left (n_trees, n_samples): which rows go to
        the left, wherever they are.
        """
        lines = self.level[self.active][party >= 0]
        by_tree: dict[int, int] = {}
        for tree, number in self.table[:, [TREE, NUMBER]].tolist():
            by_tree[tree] = max(by_tree.get(tree, 0), number + 1)
        below = np.full((2 * len(lines), N_FIELDS), _LEAF, dtype=np.int32)
        first = len(self.table)
        for i, line in enumerate(lines):
            tree = int(self.table[line, TREE])
            for side in (0, 1):
                below[2 * i + side, [TREE, NUMBER, MISSING_LEFT]] = tree, by_tree[tree], 0
                by_tree[tree] += 1
        below[:, WEIGHT] = 0
        self.table = np.concatenate([self.table, below])
        self.table[lines, PARTY] = party[party >= 0]
        self.table[lines, LEFT] = first + 2 * np.arange(len(lines))
        self.table[lines, RIGHT] = self.table[lines, LEFT] + 1
        self.table[lines, MISSING_LEFT] = missing_left[party >= 0]
        comes = self.table[self.node, PARTY] >= 0  # others are in leaves, or have just come there
        at = self.node[comes]
        self.node[comes] = np.where(left[comes], self.table[at, LEFT], self.table[at, RIGHT])
        for t in range(self.n_trees):
            counted = np.bincount(self.node[t], self.weight[t], len(self.table))
            self.table[first:, WEIGHT] += counted[first:].astype(np.int32)
        self._next_level(lines)
        return lines

    def _next_level(self, lines: Indices) -> None:
        place = np.full(len(self.table), -1, dtype=np.int64)
        place[self.level] = np.arange(len(self.level))
        pairs = self.table[lines][:, [LEFT, RIGHT]].astype(np.int64)
        may = self._may_split(pairs.reshape(-1)).reshape(pairs.shape)
        kept = may.any(axis=1)
        pairs, may = pairs[kept], may[kept]
        self.level = pairs.reshape(-1)
        self.parent = np.repeat(place[lines[kept]], 2)
        size = self.table[pairs, WEIGHT]
        smaller = np.stack([size[:, 0] <= size[:, 1], size[:, 0] > size[:, 1]], axis=1).reshape(-1)
        self.direct = np.where(smaller, np.cumsum(smaller) - 1, -1)
        self.active = np.flatnonzero(may.reshape(-1))

    def _may_split(self, lines: Indices) -> Flags:
        """Return which nodes have rows enough for two."""
        at, counts = self.places(lines)
        rows = [np.bincount(own[own >= 0], minlength=n) for own, n in zip(at, counts, strict=True)]
        return np.asarray(np.concatenate([*rows, np.zeros(0, int)]) >= 2 * self.min_child)

    @property
    def _step(self) -> int:
        """By how much the numbers of two trees of the batch differ: by the number of classes."""
        return max(int(self.table[1, TREE] - self.table[0, TREE]), 1) if self.n_trees > 1 else 1

    def pack(self) -> dict[str, Any]:
        """Return what a snapshot holds."""
        return dict(vars(self))

    def unpack(self, tree: dict[str, Any]) -> None:
        """Take up what `pack` returned."""
        for name, value in tree.items():
            setattr(self, name, int(value) if name == "min_child" else np.array(value))


_ROWS, _COLUMNS = 0, 1


def weights_of(seed: int, draw: int, n_fit: int, bootstrap: bool) -> Integers:
    """Return how often a tree has each row of the fit, shape (n_fit,)."""
    if not bootstrap:
        return np.ones(n_fit, dtype=np.int64)
    rng = np.random.default_rng([seed, _ROWS, draw])
    return np.bincount(rng.integers(n_fit, size=n_fit), minlength=n_fit)


def columns_of(seed: int, batch: int, n_columns: int, share: float) -> Bytes:
    """Return which columns of all parties the trees of a batch may use, 0 or 1."""
    chosen = np.ones(n_columns, dtype=np.uint8)
    count = max(1, round(share * n_columns))
    if count < n_columns:
        rng = np.random.default_rng([seed, _COLUMNS, batch])
        chosen[rng.permutation(n_columns)[count:]] = 0
    return chosen


@dataclass(frozen=True)
class Comers:
    """Rows that come to own splits."""

    split: Indices  # (n_comers,): number of the split that each of them comes to
    missing: Flags  # (n_comers,): whether it lacks the cell
    left: Flags  # Whether it goes to the left if it has the cell

    @classmethod
    def of(
        cls, layout: SlotLayout, codes: Codes, rows: Indices, split: Indices, column: Indices,
        at: Indices,
    ) -> "Comers":  # fmt: skip
        """Look the cells up.

        Shapes: codes (n_samples, n_columns); rows, split (n_comers,): which row comes to which
        split; column, at (n_splits,): column and place of the slot of each split.
        """
        n_bins, nominal = np.array(layout.n_bins), np.array(layout.nominal)
        of, place = column[split], at[split]
        code = codes[rows, of]
        missing = code == n_bins[of]
        one_level = nominal[of] & (place < n_bins[of])
        left = np.where(one_level, code == place, (code <= place) & ~missing)
        return cls(split, missing, left)

    def sides(self, missing_left: Flags) -> Flags:
        """Return which of them go to the left; `missing_left` is of each split."""
        return np.asarray(np.where(self.missing, missing_left[self.split], self.left))

    def settled(self, missing_left: Flags, fitted: Flags) -> Flags:
        """Return where rows without the cell go, (n_splits,): with most, if no fitted one is."""
        n_splits = len(missing_left)
        lacking = np.bincount(self.split, fitted & self.missing, n_splits)
        here = np.bincount(self.split, fitted, n_splits)
        to_left = np.bincount(self.split, fitted & self.left, n_splits)
        return np.where(lacking > 0, missing_left, 2 * to_left >= here)
