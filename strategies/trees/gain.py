"""Gains in whole numbers: what sums are made of, candidates of splits, and which of them is best.

A split of a node's rows into L and R changes the loss (to second order) by half of

    G_L^2 / (H_L + l2) + G_R^2 / (H_R + l2) - G^2 / (H + 2 l2) = S N^2 / (H'_L H'_R),

with ``S = H + 2 l2``, ``m = G / S``, ``H'_L = H_L + l2``, ``N = G_L - m H'_L``. Of the candidates
of one node, the one with the largest ``N^2 / (H'_L H'_R)`` is the best: what is subtracted is the
same for all of them. So the parties' slots are multiplied with g and h, once for each row of the
smaller of two siblings, in fixed point; ``m`` comes to sums of nodes (`secret_shares`).

Bits: sums of h over n rows are made to stay below 2^s with s = 25 + log2(n) / 4. What a ring of 64
bits leaves is for the factors and the noise that blind them (`blinding`). More bits of a sum mean
less rounding, but more noise; with this s the two are about equal in nodes of any size. Rows are
rounded up or down in turn: rows of one label have the same derivative at first, and all their
errors would add up. N has 52 bits in nodes of any size, by a power of two that follows from their
rows: ``m`` is rounded in its unit, and that error is multiplied by H'_L.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import AnyArray, Array, Flags, Integers
from flwr_vertical.errors import ProtocolError
from strategies.trees.binning import SlotLayout
from strategies.trees.node_sums import Indices, Ring

FLAT = 1e-9
"""Rows whose ``v`` are all below this share of the tree's largest gradient count as alike."""

_GOLDEN = (5.0**0.5 - 1.0) / 2.0
_SUM_BITS = 25  # and a quarter of the rows' logarithm
N_NOISE = 2.0**-26
"""Noise on N as a share of its limit: above what factors are, and what is not sent."""

_N_BITS = 52  # leaves a factor two bits of jitter, six of spread, and one

TIE = 2.0**-18
"""Splits whose gains differ by less than this share of the best one count as equal."""

_ORDERED, _NOMINAL, _SORTED = range(3)


def to_ring(values: npt.NDArray[np.number]) -> Ring:
    """Return whole numbers modulo 2^64."""
    return np.asarray(values).astype(np.int64).view(np.uint64)


def signed(ring: Ring) -> Integers:
    """Return numbers modulo 2^64 as numbers with a sign."""
    return np.ascontiguousarray(ring).view(np.int64)


def rounded(values: Array) -> Array:
    """Round up or down, so that the errors of equal numbers cancel over any rows.

    What is added before rounding down, the multiples of the golden ratio modulo 1, is spread evenly
    over any stretch of rows (Weyl, 1916), and it is the same in each run.
    """
    added = np.arange(len(values)) * _GOLDEN
    return np.asarray(np.floor(values + (added - np.floor(added))))


def fraction_bits(rows: npt.ArrayLike) -> Array:
    """Return how many fraction bits numbers up to 1 have whose sums are over so many rows."""
    log = np.log2(np.asarray(rows, dtype=np.float64) + 1.0)
    return np.asarray(np.maximum(np.floor(_SUM_BITS + log / 4.0) - np.ceil(log), 1.0))


def _first_bits(rows: npt.ArrayLike) -> Array:
    """Return how many fraction bits a first derivative has where N is over so many rows."""
    return np.asarray(_N_BITS - np.ceil(np.log2(np.asarray(rows, dtype=np.float64) + 1.0)))


@dataclass(frozen=True)
class Derivatives:
    """The derivatives of one tree's rows, as whole numbers; made once a tree."""

    # first, second: (n_rows,): 0 at rows that are not of the fit; second: else at least 1
    first: Integers
    second: Integers
    first_bits: int  # No row has a first derivative above 2^first_bits
    l2: int  # The regularisation, in units of second derivatives
    bits: int  # No row has a second derivative above 2^bits
    extra: int  # A power of two, or 0: ``2 l2`` is at most ``extra 2^bits``

    @classmethod
    def of(cls, g: Array, h: Array, inside: Flags, l2: float) -> "Derivatives":
        """Encode derivatives of the rows that are fitted."""
        largest = max(float(h[inside].max(initial=0.0)), 1e-300)
        ratio = 2.0 * l2 / largest
        extra = 2 ** int(np.ceil(np.log2(ratio + 1.0))) if l2 else 0
        bits = int(fraction_bits(int(inside.sum()) + extra))
        unit = largest * 2.0**-bits
        # No row may vanish: a side without any weight would have an infinite gain.
        second = np.where(inside, np.maximum(rounded(h / unit), 1.0), 0.0).astype(np.int64)
        steepest = max(float(np.abs(g[inside]).max(initial=0.0)), 1e-300)
        first_bits = int(_first_bits(int(inside.sum())))
        first = np.where(inside, np.rint(g / steepest * 2.0**first_bits), 0.0).astype(np.int64)
        return cls(first, second, first_bits, round(l2 / unit), bits, extra)


@dataclass(frozen=True)
class LevelGradients:
    """What the server knows of the nodes of one level: ``N = scale G_L - slope H'_L``."""

    # scale, slope: (n_nodes,): whole; a power of two that follows from the node's rows and the
    # tree's; ``m`` in that unit
    scale: Integers
    slope: Integers
    correction: Integers  # (n_nodes,): ``-slope l2``
    total_v: Integers  # (n_nodes,): N of all rows of the node, but for the correction
    total_h: Integers  # (n_nodes,): sums over all rows of the node
    l2: Integers  # (n_nodes,)
    # limit_v, limit_h: (n_nodes,): above every ``|N|`` of the node; above every ``H'_L`` and
    # ``H'_R``. They follow from the number of its rows, and of the tree's; with l2, from a power
    # of two above ``2 l2 / max h``.
    limit_v: Array
    limit_h: Array
    # (n_nodes,): whether all rows of the node are alike, so that no split changes the loss
    flat: Flags


def level_of(
    node: Indices, n_nodes: int, g: Array, trees: list[Derivatives], tree: Indices
) -> LevelGradients:
    """Return what is known of a level's nodes.

    Shapes: node (n_trees, n_rows): number of the node that each row is in, -1 for none; numbers go
    over all trees; g (n_trees, n_rows): first derivatives; tree (n_nodes,): which tree each node
    belongs to.
    """
    parts: list[tuple[AnyArray, ...]] = []
    for t, own in enumerate(trees):
        rows = np.flatnonzero(node[t] >= 0)
        at, mine = node[t][rows].astype(np.intp), tree == t
        count = np.bincount(at, minlength=n_nodes).astype(np.float64)
        total_g = _whole_sums(at, own.first[rows], n_nodes)
        total_h = _whole_sums(at, own.second[rows], n_nodes)
        # N is a mean of G_L and -G_R, by H'_R and H'_L: so it is below n times the largest g.
        scale = np.where(mine, 2.0 ** (_first_bits(count) - own.first_bits), 0.0).astype(np.int64)
        weight = np.maximum(total_h + 2 * own.l2, 1)
        slope = np.rint(total_g / weight * scale).astype(np.int64)
        gradient = g[t][rows]
        in_float = np.bincount(at, gradient, n_nodes) / weight
        largest = np.zeros(n_nodes)
        np.maximum.at(largest, at, np.abs(gradient - in_float[at] * own.second[rows]))
        flat = largest <= FLAT * np.abs(gradient).max(initial=0.0)
        limit_v = (count + 2.0) * 2.0 ** _first_bits(count)
        limit_h = (count + 1.0 + own.extra) * 2.0**own.bits
        l2 = np.where(mine, own.l2, 0)
        parts.append((
            scale, slope, -slope * l2, scale * total_g - slope * total_h, total_h, l2,
            np.where(mine, limit_v, 0.0), np.where(mine, limit_h, 0.0), mine & flat,
        ))  # fmt: skip
    # Trees do not share nodes.
    *whole, flats = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    return LevelGradients(*whole, flats > 0)  # type: ignore[call-arg]


def candidates(slots: Ring, observed: Indices, total: Ring) -> Ring:
    """Return a share of the sums over the left side of every candidate, (n_nodes, 2 * n_slots).

    Slot by slot: missing cells to the right, then to the left (all rows that are not observed).
    Shapes: slots (n_nodes, n_slots): a share; observed (n_slots,): of each slot, that of its
    column's observed rows; total (n_nodes,): sums over all rows; they are in one of the shares.
    """
    with_missing = slots - slots[:, observed] + total[:, None]
    return np.stack([slots, with_missing], axis=2).reshape(len(slots), -1)


def of_slots(slots: Indices) -> Indices:
    """Return the candidates of slots: missing cells to the right, then to the left."""
    return np.asarray(np.stack([2 * slots, 2 * slots + 1], axis=1).reshape(-1))


@dataclass(frozen=True)
class Candidates:
    """The candidates of some parties' columns; all parties are told how these are laid out.

    Slot s has candidate ``2 s``, by which rows without the cell go to the right, and unless its
    column is complete ``2 s + 1``, by which they go to the left.
    """

    layouts: Sequence[SlotLayout]
    numbers: Indices  # (n_candidates,): ascending
    observed: Indices  # (n_slots,): of each slot, the last one of its column

    @classmethod
    def of(cls, layouts: Sequence[SlotLayout]) -> "Candidates":
        """Return those of these columns."""
        widths = np.array([width for own in layouts for width in own.widths], dtype=np.int64)
        complete = np.array([c for own in layouts for c in own.complete], dtype=bool)
        observed = np.repeat(np.cumsum(widths) - 1, widths)
        exists = np.ones((len(observed), 2), dtype=bool)
        # A column's last slot has no rows but those that lack the cell on its other side.
        exists[:, 1] = ~np.repeat(complete, widths) & (np.arange(len(observed)) != observed)
        return cls(layouts, np.flatnonzero(exists), observed)

    def sums(self, sent: Ring, total: Ring) -> Ring:
        """Return a share of sums over the left side of each, (n_nodes, n_candidates).

        Shapes: sent (n_nodes, n_sent): a share, of all parties side by side; total (n_nodes,): sums
        over all rows, or 0 in a share that has no part of them.
        """
        ends = np.cumsum([own.n_sent for own in self.layouts])[:-1]
        parts = zip(self.layouts, np.split(sent, ends, axis=1), strict=True)
        slots = np.concatenate([own.slots_of(part, total) for own, part in parts], axis=1)
        return candidates(slots, self.observed, total)[:, self.numbers]

    def places(self, slots: Indices) -> Indices:
        """Return the places of the candidates of some slots."""
        return np.flatnonzero(np.isin(self.numbers // 2, slots))


def columns_of(layouts: Sequence[SlotLayout]) -> Indices:
    """Return how columns are laid out, as parties are told: see `layouts_of`."""
    return np.array(
        [
            (k, bins, (_SORTED if own.are_sorted else _NOMINAL) if nominal else _ORDERED, complete)
            for k, own in enumerate(layouts)
            for bins, nominal, complete in zip(own.n_bins, own.nominal, own.complete, strict=True)
        ],
        dtype=np.int32,
    ).reshape(-1, 4)


def layouts_of(columns: Indices, n_parties: int) -> list[SlotLayout]:
    """Return the layout of each party.

    Shapes: columns (n_columns, 4): number of the party, bins, whether levels have an order (0:
    they do; 1: they do not; 2: they were sorted), and whether no cell is missing.
    """
    found = []
    for k in range(n_parties):
        _, bins, kind, complete = columns[columns[:, 0] == k].T
        nominal, lacks_none = (tuple((part > 0).tolist()) for part in (kind, complete))
        found.append(
            SlotLayout(tuple(bins.tolist()), nominal, lacks_none, bool((kind == _SORTED).any()))
        )
    return found


def checked_layouts(
    columns: Indices, names: list[str], name: str, layout: SlotLayout
) -> tuple[int, list[SlotLayout]]:
    """Return the place of a party among all, and their layouts; refuse others of its columns."""
    found, own = layouts_of(columns, len(names)), names.index(name) if name in names else -1
    if own < 0 or found[own] != layout or (np.diff(columns[:, 0]) < 0).any():
        raise ProtocolError(
            f"party {name!r}: arguments 'names' and 'columns' have other columns of it than it "
            "told; who runs the server?"
        )
    return own, found


def best_of(
    numerator: Array, left: Array, right: Array, legal: Flags, least: float | None = None
) -> Flags:
    """Return which candidates of each node are the best; gains below `least` are none.

    Shapes: numerator, left, right (n_nodes, n_candidates): ``N``, ``H'_L`` and ``H'_R``, each with
    factors that cancel in ``N^2 / (H'_L H'_R)``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(legal, numerator * numerator / (left * right), -1.0)
    if least is not None:
        gain = np.where(legal & (gain < least), 0.0, gain)
    best = gain.max(axis=1, keepdims=True, initial=-1.0)
    return np.asarray(legal & (gain >= best * (1.0 - TIE)))


def _whole_sums(at: npt.NDArray[np.intp], values: Integers, n_nodes: int) -> Integers:
    # Below 2^53, so exact.
    return np.bincount(at, values.astype(np.float64), n_nodes).astype(np.int64)
