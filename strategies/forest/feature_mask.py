"""Which slots the trees of a batch may use, and where they are among a party's own."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.products.arithmetic import helpers
from strategies.forest.gain_messages import Place
from strategies.trees.binning import Layout
from strategies.trees.node_sums import Indices


@dataclass(frozen=True)
class Used:
    """The slots in use, as one party sees them."""

    slots: Indices  # (n_used,): their numbers over all parties
    starts: Indices  # (n_parties,): first slot of each party
    place: Place
    columns: Indices  # Own columns in use
    # own, helped: Columns of the party's two shares that belong to slots in use; the last one is
    # the total
    own: Indices
    helped: Indices

    @classmethod
    def of(
        cls,
        names: list[str],
        layout: Layout,
        widths: list[int],
        observed: Indices,
        usable: npt.NDArray[np.uint8],
        name: str,
    ) -> "Used":
        """Work them out.

        Shapes: observed (n_slots,): of each slot of all parties, that of its column's observed
        rows; usable (n_slots,): whether the trees may use it; all slots of a column alike.
        """
        starts = np.concatenate([[0], np.cumsum(widths)])
        slots = np.flatnonzero(usable)
        place = np.full(len(usable), -1, dtype=np.int64)
        place[slots] = np.arange(len(slots))
        party = np.searchsorted(starts, slots, side="right") - 1
        own = names.index(name)
        helper = helpers(names)
        helped = [k for k, other in enumerate(names) if helper[other] == name]
        before = np.cumsum([0, *(widths[k] for k in helped)])
        of_helped = [
            slots[party == k] - starts[k] + at for k, at in zip(helped, before, strict=False)
        ]
        # A party that helps nobody has no share as helper, and no total in it.
        total = [before[-1:]] if helped else []
        mine = slots[party == own] - starts[own]
        return cls(
            slots,
            starts[:-1],
            Place(
                own,
                len(names),
                place[slots[party == own]],
                np.concatenate([np.zeros(0, int), *(place[slots[party == k]] for k in helped)]),
                place[observed[slots]],
            ),
            np.flatnonzero(np.isin(layout.starts, mine)),
            np.append(mine, widths[own]),
            np.concatenate([np.zeros(0, int), *of_helped, *total]),
        )

    def layout(self, whole: Layout) -> Layout:
        """Return the layout of the own columns in use."""
        return Layout(
            tuple(whole.n_bins[j] for j in self.columns),
            tuple(whole.nominal[j] for j in self.columns),
        )
