"""What a party has of a forest that grows: trees, own splits, and its half of leaves and votes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from strategies.forest.batch import LEFT, N_FIELDS, PARTY, RIGHT, TREE, WEIGHT, Batch, Lines
from strategies.trees.node_sums import Indices, Ring

VOTE_BITS = 56
"""The mean of all trees' votes, of targets up to 1, is a whole number up to 2^56."""


class Kept:
    """Of one party."""

    def __init__(self) -> None:
        self.own = -1
        self.table: Lines = np.zeros((0, N_FIELDS), dtype=np.int32)
        self.splits: Lines = np.zeros((0, 2), dtype=np.int32)
        self.leaf: Ring = np.zeros(0, dtype=np.uint64)
        self.votes: Ring = np.zeros((0, 0), dtype=np.uint64)
        self.level: dict[str, Any] = {}
        self.pending: Lines = np.zeros((0, 2), dtype=np.int32)

    def begin_batch(self, own: int, n_classes: int, n_free: int) -> None:
        """Forget the batch before."""
        if self.own < 0:
            self.votes = np.zeros((n_classes, n_free), dtype=np.uint64)
        self.own, self.level, self.pending = own, {}, np.zeros((0, 2), dtype=np.int32)

    def add_splits(self, lines: Indices, column: Indices, at: Indices) -> None:
        """Write own splits down: lines of the batch's table, columns and places of the slots."""
        more = int(lines.max(initial=-1)) + 1 - len(self.pending)
        if more > 0:
            self.pending = np.concatenate([self.pending, np.full((more, 2), -1, dtype=np.int32)])
        self.pending[lines] = np.stack([column, at], axis=1)

    def end_batch(
        self, batch: Batch, leaf: Ring, coefficients: Ring, free: npt.NDArray[np.intp]
    ) -> None:
        """Add the trees of a batch.

        Shapes: leaf (n_nodes,): the own share of the leaves' sums; coefficients (n_nodes,): see
        `coefficients_of`; free (n_free,): rows without a label.
        """
        n_classes = len(self.votes)
        votes = leaf * coefficients
        for t in range(batch.n_trees):
            of_class = int(batch.table[t, TREE]) % n_classes
            self.votes[of_class] += votes[batch.node[t, free]]
        table = batch.table.copy()
        below = table[:, PARTY] >= 0
        table[below, LEFT] += len(self.table)
        table[below, RIGHT] += len(self.table)
        splits = np.full((len(table), 2), -1, dtype=np.int32)
        splits[: len(self.pending)] = self.pending
        self.table = np.concatenate([self.table, table])
        self.splits = np.concatenate([self.splits, splits])
        self.leaf = np.concatenate([self.leaf, leaf])
        self.level, self.pending = {}, self.pending[:0]

    def pack(self) -> dict[str, Any]:
        """Return what a snapshot holds: snapshots are taken between batches."""
        names = ("own", "table", "splits", "leaf", "votes")
        return {name: getattr(self, name) for name in names}

    def unpack(self, tree: dict[str, Any]) -> None:
        """Take up what `pack` returned."""
        for name, value in tree.items():
            setattr(self, name, int(value) if name == "own" else np.array(value))


def coefficients_of(table: Lines, n_trees: int, target_bits: int) -> Ring:
    """Return what leaves' sums are multiplied by, so that votes are means of trees' means.

    Shapes: table (n_nodes, 7); returns (n_nodes,): 0 of nodes that are no leaves.
    """
    rows = np.maximum(table[:, WEIGHT], 1).astype(np.float64)
    found = np.rint(2.0 ** (VOTE_BITS - target_bits) / (rows * n_trees)).astype(np.uint64)
    found[table[:, PARTY] >= 0] = 0
    return np.asarray(found)
