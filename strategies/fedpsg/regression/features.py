"""A party's attributes as columns that regressions take in, and the way back to valid values.

A number is its standardised self, a level a column of 0 and 1 for each. ``forest`` adds leaves of
trees that are drawn at random, without a look at what is to be predicted (`RandomTreesEmbedding` of
scikit-learn; Geurts, Ernst and Wehenkel, "Extremely randomized trees", 2006, with K = 1): which
leaf a sample is in, as 0 and 1. Weights of leaves are fitted like all others.

With ``rule="draw"`` values are drawn around predictions. Noise of few rows has correlations of its
own, with what is predicted and between columns, and these are what a drawn table loses most by. So
noise is balanced: its mean is 0, its covariance the wanted one and its product with the predictions
0 in the very rows that are drawn, not only on average
(compare balanced sampling: Deville and Tillé, "Efficient balanced sampling: the cube method",
2004). Each row's noise is normal up to terms of the order of 1 / rows.

A level is the one whose column is largest after the noise. Linear predictions of 0 and 1 with
normal noise do not give each level as often as is predicted, so each column has an offset for
which they do (as thresholds of a probit model are).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from flwr_vertical import Table
from flwr_vertical.arrays import Array, Indices
from flwr_vertical.products.columns import OF_TREES
from flwr_vertical.tables.codes import fit_levels, to_codes
from strategies.fedpsg.gan.encoding import by_columns

LEAVES = 4
"""Leaves of a random tree at most."""

WHOLE = -1
"""In place of an attribute's number, of columns that need all attributes of the party."""

_GRID = 512
_TREES = Lock()  # scikit-learn resets the process's warning filters meanwhile: one thread at a time


@dataclass(frozen=True)
class RegressionColumns:
    """How a party's attributes are encoded."""

    centre: Array  # (n_columns,): of numbers; 0 and 1 of levels
    spread: Array  # (n_columns,): of numbers; 0 and 1 of levels
    n_levels: tuple[int, ...]  # Of each attribute; 0 of a number
    # Values of each attribute at `_GRID` quantiles at most, ascending; to draw from
    seen: tuple[Array, ...]
    # Whether numbers are normal scores, so that what is drawn has the observed distribution
    drawn: bool
    trees: Any = None  # Fitted `RandomTreesEmbedding`, or None

    @classmethod
    def fit(
        cls, codes: Array, n_levels: Sequence[int], drawn: bool, n_trees: int = 0
    ) -> "RegressionColumns":
        """Take centres, spreads and trees of codes, NaN = missing; every column has a value.

        Trees are the same in all runs: other ones would tell of the rows between their thresholds.
        """
        numeric = np.array(n_levels) == 0
        spread = np.nanstd(codes, axis=0)
        at = np.linspace(0.0, 1.0, _GRID)
        made = cls(
            np.where(numeric, np.nanmean(codes, axis=0), 0.0),
            np.where(numeric & (spread > 0), spread, 1.0),
            tuple(n_levels),
            tuple(np.quantile(of[~np.isnan(of)], at, method="inverted_cdf") for of in codes.T),
            drawn,
        )
        if not n_trees:
            return made
        from sklearn.ensemble import RandomTreesEmbedding

        trees = RandomTreesEmbedding(
            n_trees, max_depth=None, max_leaf_nodes=LEAVES, random_state=0, sparse_output=False
        )
        with _TREES:
            trees.fit(made._inputs(codes))
        return replace(made, trees=trees)

    @property
    def widths(self) -> Indices:
        """Columns of each attribute; shape (n_columns,)."""
        return np.maximum(np.array(self.n_levels, dtype=np.int64), 1)

    @property
    def n_targets(self) -> int:
        """Columns that attributes can be told from again; they come first."""
        return int(self.widths.sum())

    @property
    def attributes(self) -> Indices:
        """The attribute of each column, `WHOLE` of leaves; shape (width,)."""
        own = np.repeat(np.arange(len(self.n_levels)), self.widths)
        if self.trees is None:
            return own
        n_leaves = sum(len(leaves) for leaves in self.trees.one_hot_encoder_.categories_)
        return np.append(own, np.full(n_leaves, WHOLE))

    def sources(self, names: Sequence[str]) -> tuple[frozenset[str], ...]:
        """Return of which attributes each column is made."""
        of = {WHOLE: OF_TREES} | {j: frozenset([name]) for j, name in enumerate(names)}
        return tuple(of[int(j)] for j in self.attributes)

    def encode(self, codes: Array) -> Array:
        """Return the columns, those of a missing attribute at its mean or 0."""
        columns = by_columns(codes, self.n_levels, self._scaled)
        if self.trees is None:
            return columns
        with _TREES:
            leaves = self.trees.transform(self._inputs(codes))
        return np.hstack([columns, leaves])

    def decode(self, values: Array, attributes: Sequence[int]) -> Array:
        """Return codes of some attributes: numbers within their range, the likeliest level."""
        out, at = np.empty((len(values), len(attributes))), 0
        for i, j in enumerate(attributes):
            width = max(self.n_levels[j], 1)
            block, at = values[:, at : at + width], at + width
            if self.n_levels[j]:
                out[:, i] = block.argmax(axis=1)
            elif self.drawn:
                # The value that is observed at the same place of the distribution.
                place = ndtr(block[:, 0]) * (len(self.seen[j]) - 1)
                out[:, i] = self.seen[j][np.rint(place).astype(np.int64)]
            else:
                found = self.centre[j] + self.spread[j] * block[:, 0]
                out[:, i] = np.clip(found, self.seen[j][0], self.seen[j][-1])
        return out

    def _scaled(self, column: Array, j: int) -> Array:
        if not self.drawn:
            return np.asarray(np.nan_to_num((column - self.centre[j]) / self.spread[j]))
        # The middle of where the value stands among those observed, as a normal quantile.
        low = np.searchsorted(self.seen[j], column, side="left")
        high = np.searchsorted(self.seen[j], column, side="right")
        place = (low + high) / (2.0 * len(self.seen[j]))
        scores: Array = ndtri(np.clip(place, 0.5 / _GRID, 1.0 - 0.5 / _GRID))
        return np.asarray(np.where(np.isnan(column), 0.0, scores), dtype=np.float64)

    def _inputs(self, codes: Array) -> Array:
        """Return what trees split: numbers at their place among those observed, and levels."""

        def place(column: Array, j: int) -> Array:
            found = np.searchsorted(self.seen[j], column, side="left") / len(self.seen[j])
            return np.where(np.isnan(column), 0.5, found)

        return by_columns(codes, self.n_levels, place)


def made_again(
    table: Table, _: int | None, drawn: bool, n_trees: int
) -> tuple[Array, tuple[frozenset[str], ...]]:
    """Return the columns of a table, and of which attributes each is made."""
    levels = fit_levels([table])
    codes, counts = to_codes(table, levels, ""), [len(levels.get(n, ())) for n in table.columns]
    features = RegressionColumns.fit(codes, counts, drawn, n_trees)
    return features.encode(codes), features.sources(table.columns)


def n_trees_of(wanted: int, n_rows: int, n_columns: int) -> int:
    """Return how many trees leave three rows or more for each column."""
    return max(0, min(wanted, (n_rows // 3 - n_columns) // LEAVES))


ROWS_FOR_EACH_COLUMN = 4
"""Least rows for each column in which noise is balanced; in fewer, little noise would be left."""

_SIMULATED = 4000  # rows at least from which offsets are found
_STEPS, _DAMPED = 40, 0.7


def draw_codes(
    features: RegressionColumns,
    predicted: Array,
    attributes: list[int],
    root: Array,
    rng: np.random.Generator,
) -> Array:
    """Return codes of some attributes, drawn.

    Shapes: predicted (n, n_target_columns): what is expected of these attributes' columns; root
    (n_target_columns, n_target_columns): A square root of the noise's covariance; returns (n,
    n_attributes).
    """
    values = predicted + balanced_noise(predicted, rng) @ root.T
    at = 0
    for j in attributes:
        width = max(features.n_levels[j], 1)
        block = slice(at, at + width)
        if width > 1:
            values[:, block] += level_offsets(predicted[:, block], root[block], rng)
        at += width
    return features.decode(values, attributes)


def balanced_noise(predicted: Array, rng: np.random.Generator) -> Array:
    """Return standard normal noise, balanced where there are rows enough; shape as `predicted`."""
    noise = rng.normal(size=predicted.shape)
    n, width = noise.shape
    if n < ROWS_FOR_EACH_COLUMN * (width + 1):
        return noise
    basis, _ = np.linalg.qr(np.column_stack([np.ones(n), predicted]))
    noise -= basis @ (basis.T @ noise)
    spread, directions = np.linalg.eigh(noise.T @ noise / n)
    return np.asarray(noise @ (directions / np.sqrt(spread)) @ directions.T)


def level_offsets(predicted: Array, root: Array, rng: np.random.Generator) -> Array:
    """Return what is added to the columns of a level so that each is drawn as often as predicted.

    Shapes: predicted (n, n_levels); root (n_levels, n_noise); returns (n_levels,): 0 where nothing
    is to be drawn, since there is no noise or no row.
    """
    n, n_levels = predicted.shape
    shares = np.clip(predicted, 0.0, None).sum(axis=0)
    if not n or not root.any() or not shares.any():
        return np.zeros(n_levels)
    # Offsets for the very rows drawn would make the likeliest level of few rows a certain one.
    rows = np.repeat(predicted, -(-_SIMULATED // n), axis=0)
    rows = rows + rng.normal(size=(len(rows), root.shape[1])) @ root.T
    least = 0.5 / len(rows)
    wanted = ndtri(np.clip(shares / shares.sum(), least, 1.0 - least))
    spread, offsets = np.sqrt(np.square(root).sum(axis=1)), np.zeros(n_levels)
    for _ in range(_STEPS):
        found = np.bincount((rows + offsets).argmax(axis=1), minlength=n_levels) / len(rows)
        offsets += _DAMPED * spread * (wanted - ndtri(np.clip(found, least, 1.0 - least)))
    return offsets
