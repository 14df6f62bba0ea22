"""The masked rows of all slots at the server: prepared, sent block by block, on disk if many.

A million samples with 50 columns of 16 bins are 6.4 GB. The file has no name: it is gone when the
run ends, however it ends. What is in it is uniform without the group seed, which the server lacks.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Flags
from flwr_vertical.counted import counted
from flwr_vertical.products import GroupKey, PairKeys
from flwr_vertical.products.sent_rows import ReceivedRows
from flwr_vertical.protocol.messages import ARBITER
from strategies.trees.arbiter import parcel_keys
from strategies.trees.binning import SlotLayout
from strategies.trees.monotone import Directions, of_slots
from strategies.trees.node_sums import Indices, Matrix


@dataclass
class Slots:
    """The slots of all parties, and their rows under key streams."""

    names: list[str]
    layouts: dict[str, SlotLayout]
    monotone: dict[str, Directions]  # (n_columns,): directions of columns, see `monotone`
    tags: dict[str, bytes] = field(default_factory=dict)
    masked: dict[str, Matrix] = field(default_factory=dict)  # by party

    @property
    def ordered(self) -> list[SlotLayout]:
        """The layout of each party, in the order of their names."""
        return [self.layouts[name] for name in self.names]

    @property
    def widths(self) -> list[int]:
        """Slots of each party whose rows are sent."""
        return [own.n_sent for own in self.ordered]

    @property
    def n_columns(self) -> int:
        """Columns of all parties."""
        return sum(len(own.n_bins) for own in self.ordered)

    @property
    def directions(self) -> Directions:
        """Of each slot, whether predictions may only rise or fall with its column."""
        parts = [of_slots(self.monotone[name], self.layouts[name]) for name in self.names]
        return np.concatenate(parts)

    @property
    def levels(self) -> Flags:
        """Of each slot, whether it is a single level of a nominal column that is not sorted."""
        return np.concatenate([own.single_levels for own in self.ordered])

    def only_levels(self) -> None:
        """Keep nominal columns alone, until `sort_levels` has all again."""
        self.layouts = {
            name: own.of_columns(np.flatnonzero(own.nominal)) for name, own in self.layouts.items()
        }
        self.masked = {}

    def sort_levels(self, order: Indices, whole: dict[str, SlotLayout]) -> dict[str, list[int]]:
        """Give nominal columns the slots of ordered ones, too; return the ranks of their codes.

        Shapes: order (n_ranked,): slots of single levels in their order, if these were all columns;
        levels that it lacks come last. whole: the layouts of all columns.
        """
        self.layouts = whole
        self.only_levels()
        widths = [width for own in self.ordered for width in own.widths]
        place = np.full(sum(widths), sum(widths))
        place[order] = np.arange(len(order))
        of_columns = iter(np.split(place, np.cumsum(widths)[:-1]))
        ranks = {
            name: [
                rank
                for bins in self.layouts[name].n_bins
                for rank in np.argsort(np.argsort(next(of_columns)[:bins], kind="stable")).tolist()
            ]
            for name in self.names
        }
        self.layouts = {
            name: replace(own, are_sorted=any(own.nominal)) for name, own in whole.items()
        }
        return ranks

    def locate(self, slot: int) -> tuple[int, int]:
        """Return the place of a slot's party, and its number there."""
        ends = np.cumsum([own.n_slots for own in self.ordered])
        k = int(np.searchsorted(ends, slot, side="right"))
        return k, slot - int(ends[k] - self.ordered[k].n_slots)


SEND_BYTES = 1 << 26
"""Of a party's rows in one message, at most (but one row at least)."""


def fetch(federation: Federation, slots: Slots, arguments: dict[str, dict[str, Any]]) -> None:
    """Have all parties send their masked rows, and keep them in `slots`.

    They are in no journal: beside the group seed they would be the tables. So nothing is kept where
    a journal answers in place of the parties, and they are asked again later.
    """
    n_rows = len(federation.labels)
    size = max(1, SEND_BYTES // (8 * max(1, *slots.widths)))
    rows = ReceivedRows("send_masked", n_rows, size)
    for start in range(0, n_rows, size):
        replies = federation.call(
            "send_masked",
            {"start": start, "stop": min(start + size, n_rows)},
            per_party=arguments,
            unkept=["masked"],
        )
        slots.tags = {name: bytes(replies[name]["tag"]) for name in slots.names}
        # Where a journal answers, go on to its next block: it has one of every round.
        rows.add(replies, start)
    slots.masked = {**rows.on_disk()}
    if rows.are_there and not slots.masked:
        slots.masked = {**rows.whole()}


def prepare(
    federation: Federation, n_bins: int, n_sides: int, hidden: bool, result: Result
) -> tuple[Slots, dict[str, dict[str, Any]], dict[str, Any]]:
    """Have columns cut and keys made; return slots, arguments of `send_masked`, and keys."""
    names, pairs = list(federation.parties), PairKeys(federation)
    asked = {"nonce": pairs.nonce, "n_bins": n_bins, "n_sides": n_sides}
    replies = federation.call("prepare", asked, parties=[*names, ARBITER] if hidden else names)
    pairs.collect(replies)
    arguments = GroupKey(federation, pairs).arguments()
    keys: dict[str, Any] = {}
    if hidden:
        keys, box = parcel_keys(names, pairs.nonce, replies)
        for name in names:
            arguments[name]["arbiter"] = box
    layouts = {
        name: SlotLayout(
            tuple(int(n) for n in replies[name]["n_bins"]),
            tuple(bool(n) for n in replies[name]["nominal"]),
            tuple(bool(n) for n in replies[name]["complete"]),
        )
        for name in names
    }
    for name, layout in layouts.items():
        few = [n for n in layout.n_bins if n < n_bins]
        if few:
            result.notes.append(
                f"party {name!r}: {counted(len(few), 'column has', 'columns have')} fewer than "
                f"{n_bins} bins: there are "
                "fewer distinct values, or too few rows have some of them"
            )
    monotone = {name: np.asarray(replies[name]["monotone"], dtype=np.int8) for name in names}
    return Slots(names, layouts, monotone), arguments, keys
