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
from flwr_vertical.tables import Table
from strategies.forest.batch import Lines
from strategies.trees.binning import Bins, Codes
from strategies.trees.model import plain_level
from strategies.trees.node_sums import Ring
from strategies.trees.objectives import Objective


@dataclass
class VotesPart(Model):
    """A party's part."""

    strategy = "forest"

    model: str  # Which model it belongs to: the name by which the server calls it
    parties: list[str]  # Of the fit
    columns: list[str]  # See `Bins`
    nominal: list[bool]  # See `Bins`
    edges: list[Array]  # See `Bins`
    levels: list[list[Any]]  # See `Bins`
    other: list[int]  # See `Bins`
    table: Lines  # (n_nodes, 7): see `Kept`
    splits: Lines  # (n_nodes, 2): column and place of the slot, of own splits
    leaf: Ring  # (n_nodes,): the own share of leaves' sums
    n_classes: int  # That have trees of their own
    target_bits: int  # See `coefficients_of`

    @staticmethod
    def fields_of(bins: Bins) -> dict[str, Any]:
        """Return what is written down of the bins."""
        return {
            "columns": bins.columns,
            "nominal": bins.nominal,
            "edges": bins.edges,
            "levels": [[plain_level(level) for level in own] for own in bins.levels],
            "other": bins.other,
        }

    @property
    def bins(self) -> Bins:
        """How columns become codes."""
        return Bins(self.columns, self.nominal, self.edges, self.levels, self.other)

    def codes(self, table: Table, party: str) -> Codes:
        """Return codes of new rows."""
        return self.bins.codes(table, party)


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
    low: float  # Least target, and by how much the largest exceeds it: 0 and 1 of classes
    span: float  # Least target, and by how much the largest exceeds it: 0 and 1 of classes

    @property
    def loss(self) -> Objective:
        """What the trees were grown for."""
        return Objective(self.objective, self.n_classes)

    def raw(self, votes: npt.NDArray[np.integer], bits: int) -> Array:
        """Return raw predictions, shape of the votes.

        Shapes: votes (n_classes, n_samples): between 0 and 2^bits.
        """
        return np.asarray(self.low + self.span * votes.astype(np.float64) * 2.0**-bits)


def importance(parties: list[str], told: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return number of splits and rows at them by party; index party."""
    rows = [
        {"party": name, "splits": int(told[name]["splits"]), "cover": float(told[name]["cover"])}
        for name in parties
    ]
    return pd.DataFrame(rows).set_index("party")
