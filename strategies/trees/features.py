"""The slots of all parties in one order, and their rows as the server has them: masked."""

from dataclasses import dataclass, field

import numpy as np

from strategies.trees.binning import Layout
from strategies.trees.monotone import Directions, of_slots
from strategies.trees.node_sums import Blocks, Indices


@dataclass
class Slots:
    """The slots of all parties, and their rows under key streams."""

    names: list[str]
    layouts: dict[str, Layout]
    # (n_columns,): directions of columns, see `monotone`; none by default
    monotone: dict[str, Directions] = field(default_factory=dict)
    tags: dict[str, bytes] = field(default_factory=dict)
    # Gives rows of a party's matrix, see `dense_sums`
    masked: dict[str, Blocks] = field(default_factory=dict)

    @property
    def widths(self) -> list[int]:
        """Slots of each party."""
        return [self.layouts[name].n_slots for name in self.names]

    @property
    def starts(self) -> list[int]:
        """First slot of each party."""
        return [0, *np.cumsum(self.widths).tolist()][:-1]

    @property
    def columns(self) -> Indices:
        """Of each slot, the number of its column over all parties."""
        widths = [width for name in self.names for width in self.layouts[name].widths]
        return np.repeat(np.arange(len(widths)), widths)

    @property
    def directions(self) -> Directions:
        """Of each slot, whether predictions may only rise or fall with its column."""
        parts = []
        for name in self.names:
            layout = self.layouts[name]
            none = np.zeros(len(layout.n_bins), dtype=np.int8)
            parts.append(of_slots(self.monotone.get(name, none), layout))
        return np.concatenate(parts)

    @property
    def observed(self) -> Indices:
        """Of each slot, that of its column's observed rows: the last one."""
        columns = self.columns
        last = np.flatnonzero(np.append(columns[1:] != columns[:-1], True))
        return np.asarray(last[columns])

    def locate(self, slot: int) -> tuple[int, int]:
        """Return the place of a slot's party, and its number there."""
        k = int(np.searchsorted(self.starts, slot, side="right")) - 1
        return k, slot - self.starts[k]
