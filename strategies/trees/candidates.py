"""Candidates of splits: which there are of the columns of several parties, and shares of them.

All parties are told how columns are laid out (`columns_of`), so that server and helpers make the
same candidates of sums over what was sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from flwr_vertical.errors import ProtocolError
from strategies.trees.binning import SlotLayout
from strategies.trees.gain import candidates
from strategies.trees.node_sums import Indices, Ring

_ORDERED, _NOMINAL, _SORTED = range(3)


@dataclass(frozen=True)
class Candidates:
    """The candidates of some parties' columns.

    Slot s has candidate ``2 s``, by which rows without the cell go to the right, and unless its
    column is complete ``2 s + 1``, by which they go to the left.
    """

    layouts: Sequence[SlotLayout]
    numbers: Indices  # (n_candidates,): ascending
    observed: Indices  # (n_slots,): of each slot, the last one of its column

    @classmethod
    def of(cls, layouts: Sequence[SlotLayout]) -> "Candidates":
        """Return those of these columns."""
        return cls._made(tuple(layouts))

    @classmethod
    @lru_cache(maxsize=64)  # asked for at each level
    def _made(cls, layouts: tuple[SlotLayout, ...]) -> "Candidates":
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
    return list(_layouts_of(columns.astype(np.int64).tobytes(), n_parties))


@lru_cache(maxsize=64)  # asked for at each level
def _layouts_of(content: bytes, n_parties: int) -> tuple[SlotLayout, ...]:
    columns, found = np.frombuffer(content, dtype=np.int64).reshape(-1, 4), []
    for k in range(n_parties):
        _, bins, kind, complete = columns[columns[:, 0] == k].T
        nominal, lacks_none = (tuple((part > 0).tolist()) for part in (kind, complete))
        found.append(
            SlotLayout(tuple(bins.tolist()), nominal, lacks_none, bool((kind == _SORTED).any()))
        )
    return tuple(found)


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
