"""The numbers of a scorecard: bins of a column, the block of a party, points.

A sample's score is ``base + sum of points``, one bin of each column counting. With odds ``o`` of no
event it is ``base_score + factor ln(o / base_odds)`` with ``factor = points_to_double / ln 2``
(Siddiqi, 2006, chapter 8). So with a linear predictor ``a + sum_j beta_j WoE_j`` of the event

    points of bin b of column j = - factor beta_j WoE_jb,
    base = base_score - factor (ln base_odds + a).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Array, Flags, Indices
from strategies.binning.label_sums import PartyBins
from strategies.binning.woe import (
    information_value,
    merge_bins,
    stability_index,
    weight_of_evidence,
)

HELD, ABSENT = "rows held", "absent"
"""The column that says whether a party has a row, and its bin of rows that the party lacks."""

LEAST_EVENTS = 5
"""The fewest rows with the event, and without it, of a merged bin."""


@dataclass(frozen=True)
class PointScale:
    """How log odds become points."""

    base_score: float
    base_odds: float  # Of no event, at the base score
    points_to_double: float  # More points where odds are twice as large

    @property
    def factor(self) -> float:
        """Points for each unit of log odds."""
        return self.points_to_double / math.log(2.0)

    def base(self, intercept: float) -> float:
        """Return the score of a sample whose columns have no points."""
        return self.base_score - self.factor * (math.log(self.base_odds) + intercept)

    def score(self, linear_predictor: Array) -> Array:
        """Return the score of a linear predictor of the event."""
        return np.asarray(self.base(0.0) - self.factor * linear_predictor)


@dataclass(frozen=True)
class CardColumns:
    """A party's columns in merged bins.

    Shapes: events (n_bins,): rows with the event of each bin as it was opened; held: rows of the
    fit that the party has, lacked: those that it lacks, each (rows, rows with the event).
    """

    opened: PartyBins
    events: Array
    merged: list[Indices]  # Of each column, the merged bin of each bin
    held: tuple[float, float]
    lacked: tuple[float, float]
    has_block: bool  # Whether the party lacks labelled rows, in the fit or not

    @classmethod
    def of(cls, opened: PartyBins, events: Array, share: float, **block: Any) -> "CardColumns":
        """Merge bins whose weights of evidence are not monotone, and small ones."""
        merged = []
        for j, own in enumerate(opened.slices):
            n, e = opened.counts[own].astype(float), events[own]
            proper, nominal = opened.n_proper[j], opened.nominal[j]
            merged.append(
                np.arange(len(n))
                if opened.withheld[j]
                else merge_bins(n, e, proper, nominal, share, LEAST_EVENTS)
            )
        return cls(opened, events, merged, **block)

    @property
    def names(self) -> list[str]:
        """Of the columns of the fit: that which tells rows held from others is the last one."""
        return self.opened.columns + [HELD] * self.has_block

    def sums(self, j: int) -> tuple[Array, Array]:
        """Return rows, and those with the event, of the merged bins of a column."""
        if j == len(self.merged):
            n, events = np.array([self.held, self.lacked]).T
            return n, events
        own, merged = self.opened.slices[j], self.merged[j]
        return _added(merged, self.opened.counts[own]), _added(merged, self.events[own])

    @property
    def of_one_bin(self) -> Indices:
        """Which columns had several bins that were all merged into one."""
        return np.array(
            [j for j, own in enumerate(self.merged) if len(own) > 1 and not own.any()], dtype=int
        )

    @property
    def evidence(self) -> Array:
        """Weight of evidence of each opened bin of all columns; 0 of withheld columns."""
        parts = [weight_of_evidence(*self.sums(j))[own] for j, own in enumerate(self.merged)]
        return np.concatenate(parts)

    @property
    def block(self) -> Array:
        """Weights of evidence of rows held and of rows that the party lacks; none without any."""
        return weight_of_evidence(*self.sums(len(self.merged))) if self.has_block else np.zeros(0)

    def labels(self, j: int) -> list[str]:
        """Name the merged bins of a column."""
        if j == len(self.merged):
            return ["held", ABSENT]
        return merged_labels(self.opened.bins[j], self.merged[j], self.opened.nominal[j])

    def table(self, beta: Array, factor: float) -> pd.DataFrame:
        """Return what a scorecard shows of each bin.

        Shapes: beta (n_columns,): coefficients of `names`.
        """
        parts = []
        for j, name in enumerate(self.names):
            n, events = self.sums(j)
            evidence = weight_of_evidence(n, events)
            part = pd.DataFrame(
                {
                    "n": n,
                    "share": n / max(n.sum(), 1.0),
                    "events": events,
                    "event_rate": events / np.where(n > 0, n, np.nan),
                    "woe": evidence,
                    "iv": information_value(n, events),
                    "coefficient": beta[j],
                    "points": -factor * np.nan_to_num(beta[j]) * evidence + 0.0,
                }
            )
            part.index = pd.MultiIndex.from_product([[name], self.labels(j)], names=_INDEX)
            parts.append(part)
        return pd.concat(parts)

    def stability(self) -> pd.DataFrame:
        """Return, by column, its information value and how rows without a label differ."""
        rows = []
        for j, own in enumerate(self.opened.slices):
            told = ~self.opened.withheld[j]
            free = told and not self.opened.free_withheld[j] and self.opened.free[own].any()
            n, others = self.sums(j)[0], _added(self.merged[j], self.opened.free[own])
            rows.append(
                {
                    "iv": information_value(*self.sums(j)).sum() if told else np.nan,
                    "psi": stability_index(n, others) if free else np.nan,
                }
            )
        return pd.DataFrame(rows, index=pd.Index(self.opened.columns, name="column"))


_INDEX = ["column", "bin"]


def _added(merged: Indices, values: AnyArray) -> Array:
    """Add up numbers of bins by merged bin."""
    return np.asarray(np.bincount(merged, values), dtype=np.float64)


def merged_labels(labels: Sequence[str], merged: Indices, nominal: bool) -> list[str]:
    """Name merged bins by those that they are made of; neighbouring ranges by their ends.

    Levels of a `nominal` column may be named like ranges, and are no neighbours.
    """
    out = []
    for number in range(int(merged.max()) + 1):
        own = np.flatnonzero(merged == number).tolist()
        names = [labels[b] for b in own]
        first, last = names[0], names[-1]
        neighbours = len(own) > 1 and not nominal
        if neighbours and first.endswith(_last(first)) and _last(first) == _last(last) != "":
            out.append(f"{first.split()[0]}-{last}")
        elif neighbours and first.startswith("(") and last[-1:] in "])":
            out.append(f"{first.split(',')[0]},{last.split(',')[-1]}")
        else:
            out.append(" | ".join(names))
    return out


def _last(label: str) -> str:
    """Return what follows the number of a range, `` of 12``."""
    number, of, total = label.partition(" of ")
    return f"{of}{total}" if of and number.isdigit() and total.isdigit() else ""


def points_of(evidence: Array, beta: Array, factor: float) -> Array:
    """Return points of the cells of rows.

    Shapes: evidence (n_rows, n_columns); beta (n_columns,); returns (n_rows, n_columns).
    """
    return np.asarray(-factor * beta * evidence + 0.0)


def reasons(points: Array, best: Array, names: Sequence[str], most: int = 4) -> pd.DataFrame:
    """Name, of each row, the columns that cost it most points.

    Shapes: points (n_rows, n_columns); best (n_columns,): of each column, the most points there
    are.
    """
    lost = best - points
    order = np.argsort(-lost, axis=1, kind="stable")[:, :most]
    costs: Flags = np.take_along_axis(lost, order, axis=1) > 0.0
    found = np.where(costs, np.asarray(names, dtype=object)[order], "")
    return pd.DataFrame({f"reason_{i + 1}": column for i, column in enumerate(found.T)})
