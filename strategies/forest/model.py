"""What a forest leaves: at the parties trees and two halves of their leaves, at the server a name.

No part alone says what a leaf predicts: the halves of its sum are uniform modulo 2^64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Model
from flwr_vertical.arrays import Array
from strategies.forest.batch import LEFT, N_FIELDS, PARTY, RIGHT, TREE, WEIGHT, Batch, Lines
from strategies.trees.model import BinnedPart
from strategies.trees.node_sums import Indices, Ring
from strategies.trees.objectives import Objective


@dataclass
class VotesPart(BinnedPart):
    """A party's part: trees, own splits, and its half of the leaves."""

    strategy = "forest"

    parties: list[str]  # Of the fit
    table: Lines  # (n_nodes, 7): see `Batch`
    splits: Lines  # (n_nodes, 2): column and place of the slot, of own splits
    leaf: Ring  # (n_nodes,): the own share of leaves' sums
    n_classes: int  # That have trees of their own
    target_bits: int  # See `coefficients_of`


@dataclass
class VotesModel(Model):
    """The server's part: how votes become predictions."""

    strategy = "forest"

    name: str  # Names the model at the parties
    parties: list[str]  # Parties of the fit
    objective: str
    n_classes: int  # That have trees of their own
    n_trees: int  # Of each of these
    depth: int  # Levels of splits at most
    low: float  # The least target; 0 of classes
    span: float  # By how much the largest exceeds it; 1 of classes

    @property
    def loss(self) -> Objective:
        """What the trees were grown for."""
        return Objective(self.objective, self.n_classes)

    def raw(self, votes: npt.NDArray[np.integer], bits: int) -> Array:
        """Return raw predictions, shape of the votes, (n_classes, n_samples): up to 2^bits."""
        return np.asarray(self.low + self.span * votes.astype(np.float64) * 2.0**-bits)


def importance(parties: list[str], told: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return number of splits and rows at them by party; index party."""
    rows = [
        {"party": name, "splits": int(told[name]["splits"]), "cover": float(told[name]["cover"])}
        for name in parties
    ]
    return pd.DataFrame(rows).set_index("party")


VOTE_BITS = 56
"""The mean of all trees' votes, of targets up to 1, is a whole number up to 2^56."""


class GrowingForest:
    """What a party has of a forest that grows: trees, own splits, its half of leaves and votes."""

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
    """Return what leaves' sums are multiplied by, (n_nodes,): votes are means of trees' means."""
    rows = np.maximum(table[:, WEIGHT], 1).astype(np.float64)
    found = np.rint(2.0 ** (VOTE_BITS - target_bits) / (rows * n_trees)).astype(np.uint64)
    found[table[:, PARTY] >= 0] = 0
    return np.asarray(found)
