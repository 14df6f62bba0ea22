"""Lists of ranked donors, and how cells are imputed from them (Du et al., 2024, Eq. 13)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_vertical.arrays import AnyArray, Array, Flags, Indices, Integers32
from flwr_vertical.tables import Kind, is_numeric


@dataclass
class Block:
    """A block of rows under way at the server, and the ranked donors that came back."""

    rows: Indices
    shown: int  # How many donors are listed to the parties
    ranked: dict[str, AnyArray] = field(default_factory=dict)  # as released

    def arguments(self, n_ranked: int) -> dict[str, Any]:
        """Return what the parties are told: `shown` donors a row, and those as near."""
        ranks, counts = self.ranked["ranks"], self.ranked["counts"]
        first = np.cumsum(counts) - counts
        last = (first + np.minimum(counts, self.shown) - 1)[counts > 0]
        listed = ranks <= np.repeat(ranks[last], counts[counts > 0])
        row = np.repeat(np.arange(len(counts)), counts)
        told = {name: values[listed] for name, values in self.ranked.items() if name != "counts"}
        told["counts"] = np.bincount(row[listed], minlength=len(counts)).astype(counts.dtype)
        return {"done": self.rows, "width": n_ranked, "shown": self.shown, **told}

    def of_rows(self, chosen: Flags, shown: int) -> "Block":
        """Return some of the rows, of which more donors are shown."""
        counts = self.ranked["counts"]
        kept = np.repeat(chosen, counts)
        ranked = {name: values[kept] for name, values in self.ranked.items() if name != "counts"}
        return Block(self.rows[chosen], shown, ranked | {"counts": counts[chosen]})


def joined(blocks: Sequence[Block]) -> Block:
    """Join the rows of several blocks to one."""
    first = blocks[0]
    ranked = {name: np.concatenate([b.ranked[name] for b in blocks]) for name in first.ranked}
    return Block(np.concatenate([block.rows for block in blocks]), first.shown, ranked)


def listed_donors(
    orders: Integers32,
    donors: Indices,
    neighbours: Integers32,
    ranks: Integers32,
    counts: Integers32,
    width: int,
) -> tuple[Integers32, Indices]:
    """Turn ranked places into lists of donors, those of equal rank in the order of their rows.

    Shapes: orders (n_rows, n_donors): which donor stands at which place of each row's own order;
    donors (n_donors,): the donors' sample numbers; neighbours, ranks (n_listed,): places and ranks
    of the listed donors, row after row; counts (n_rows,): how many are listed of each row; returns
    (n_rows, width): sample numbers in ascending order of distance, then of number; -1 behind the
    last; returns (n_rows, width): where each of them was listed; 0 behind the last.
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    numbers = donors[orders[rows, neighbours]]
    entry = np.lexsort((numbers, ranks, rows))
    position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = position < width
    entry, at = entry[kept], (rows[kept], position[kept])
    listed = np.full((len(counts), width), -1, dtype=np.int32)
    entries = np.zeros((len(counts), width), dtype=np.int64)
    listed[at], entries[at] = numbers[entry], entry
    return listed, entries


def impute_column(
    column: Array, kind: Kind, neighbours: Integers32, weights: Array | None, n_neighbors: int
) -> tuple[Array, Indices]:
    """Impute one column of some rows from their ranked donors.

    Shapes: column (n_samples,): values or level numbers, NaN = missing; neighbours (n_rows,
    width): donors' sample numbers in ascending order of distance, -1 behind the last; weights
    (n_rows, width): weights of the donors; None for equal ones; returns (n_rows,): NaN where no
    listed donor has a value; returns (n_rows,): how many donors were used.
    """
    donated = column[neighbours]  # (n_rows, width); -1 reads the last row and is ruled out next
    usable = ~np.isnan(donated) & (neighbours >= 0)
    usable &= np.cumsum(usable, axis=1) <= n_neighbors
    used = usable.sum(axis=1)
    w = np.where(usable, 1.0 if weights is None else weights, 0.0)
    # Donors at distance 0 take all the weight, as in scikit-learn.
    exact = np.isinf(w)
    w = np.where(exact.any(axis=1, keepdims=True), exact.astype(float), w)
    donated = np.where(usable, donated, 0.0)
    with np.errstate(invalid="ignore"):
        if is_numeric(kind):
            values = (w * donated).sum(axis=1) / w.sum(axis=1)
        elif kind is Kind.ORDINAL:
            values = _weighted_median(donated, w)
        else:
            values = _weighted_mode(donated, w)
    return np.where(used > 0, values, np.nan), used


def _weighted_mode(levels: Array, weights: Array) -> Array:
    count = int(levels.max(initial=0.0)) + 1
    votes = np.zeros((len(levels), count))
    np.add.at(votes, (np.arange(len(levels))[:, None], levels.astype(np.int64)), weights)
    # Weights that differ by rounding alone must not decide.
    top = votes.max(axis=1, keepdims=True)
    return np.asarray(np.argmax(votes >= top * (1 - 1e-9), axis=1).astype(np.float64))


def _weighted_median(levels: Array, weights: Array) -> Array:
    order = np.argsort(levels, axis=1, kind="stable")
    ranked = np.take_along_axis(levels, order, axis=1)
    total = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    half = total[:, -1:] / 2 * (1 - 1e-9)
    # Padding has weight 0, so a position reached by weight alone is never padding.
    first = np.argmax((total >= half) & (total > 0), axis=1)
    return np.asarray(np.take_along_axis(ranked, first[:, None], axis=1)[:, 0])
