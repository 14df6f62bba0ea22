"""What a party keeps of a scorecard: its bins, their evidence, its coefficients."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.tables import Table
from strategies.binning.bins import NO_BIN, ColumnBins
from strategies.linear.prediction.party_model import LinearPart
from strategies.trees.binning import Bins, Codes


@dataclass(kw_only=True)
class ScorecardPart(LinearPart):
    """A party's own coefficients, and how its cells become weights of evidence."""

    strategy = "scorecard"
    version = 1

    # See `trees.binning.Bins`, with the columns of the table in the order of the first `columns`
    nominal: list[bool]
    edges: list[Array]
    named_levels: list[list[Any]]
    rest: list[int]
    special: list[float]  # See `ColumnBins`
    places: list[Indices]  # See `ColumnBins`
    evidence: list[Array]  # Of each column, weight of evidence by bin
    held: list[float]  # That of rows held, in a party that lacked some; else empty

    @classmethod
    def of(
        cls, part: LinearPart, bins: ColumnBins, evidence: list[Array], held: list[float]
    ) -> "ScorecardPart":
        """Add what cells become to coefficients."""
        fitted = bins.fitted
        return cls(
            **vars(part),
            nominal=fitted.nominal,
            edges=fitted.edges,
            named_levels=fitted.levels,
            rest=fitted.other,
            special=list(bins.special),
            places=bins.places,
            evidence=evidence,
            held=held,
        )

    def features(self, table: Table, party: str) -> Array:
        """Return weights of evidence of a new table; 0 of cells that the fit had no bin for."""
        columns = self.columns[: len(self.evidence)]
        fitted = Bins(columns, self.nominal, self.edges, self.named_levels, self.rest)
        empty: list[list[str]] = [[] for _ in columns]
        bins = ColumnBins(fitted, tuple(self.special), self.places, empty, empty, [], [])
        found = weights(bins.numbers(table, party), self.evidence)
        return np.column_stack([found, *(np.full(len(found), value) for value in self.held)])


def weights(numbers: Codes, evidence: list[Array]) -> Array:
    """Return the weight of evidence of each cell, 0 where it is in no bin.

    Shapes: numbers (n_rows, n_columns): of `ColumnBins.numbers`; returns the same shape.
    """
    out = np.zeros(numbers.shape)
    for j, part in enumerate(evidence):
        told = numbers[:, j] != NO_BIN
        out[told, j] = part[numbers[told, j]]
    return out
