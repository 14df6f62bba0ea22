"""Routing: the owner of a split says which rows go to the left, and keeps the split."""

import hashlib
import math
from typing import Annotated, Any

import numpy as np

from flwr_vertical import Party, StepGroup, step
from flwr_vertical.arrays import Bytes, Integers32, Numbers
from flwr_vertical.errors import PolicyError, ProtocolError
from flwr_vertical.policy.record import key_of
from flwr_vertical.privacy_ledger.budgets import ROUNDING
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Shape, Within, check_fits
from strategies.trees.binning import SlotLayout
from strategies.trees.monotone import check_told
from strategies.trees.node_sums import Indices, KnownNodes

Splits = Integers32

# Under a prefix that the server may not write to.
_SPLITS, _TOLD = "node.trees.splits", "node.trees.told"
_ALL_TOLD = "node.trees.all told"  # bits of codes that were told of all rows
_LEVELS = "node.trees.levels"
SIDES = "node.trees.sides"
_WHAT = "which side of splits of trees rows are on"
_ORDER = "in which order levels of its columns are, by gradients that the server chose"
_WINNERS = "which splits of trees gain most, by gradients that the server chose"
_MOST_OF_SPLIT = 32.0
"""Bits of a row that a split tells at most: which one it is, and on which side the row is."""


class RoutingSteps(StepGroup):
    """The party has `codes` and `layout`."""

    party: Any

    @step
    def route(
        self,
        names: Annotated[Integers32, OWN, Shape(None, 2), Within(0, 2**31)],
        slots: Annotated[Integers32, OWN, Shape("names"), Within(0, 2**31)],
        missing_left: Annotated[Bytes, OWN, Shape("names"), Within(0, 1)],
        nodes: Annotated[Indices, OWN, DISTINCT, Shape("names"), Within(0, 2**31)],
        others: Annotated[Bytes, OWN, Shape(1, None, None)],
    ) -> dict[str, Any]:
        """Split nodes by own columns.

        Message: names (n_splits, 2): number of the tree and of the node; slots (n_splits,): of the
        own slots, that whose rows go to the left; missing_left (n_splits,): whether rows without
        the cell go there, too; nodes (n_splits,): numbers of the nodes among those of the level,
        which `ShareSteps.share` told; others (1, n_others), packed: number of the split that each
        row comes to which is not of the fit, tree by tree, -1 for none; returns ``left``, packed
        bits of the rows that come to a split, tree by
        tree; ``missing_left`` of shape (n_splits,), where rows without the cell go in the end:
        where none that is fitted lacks it, with the majority.
        """
        check_told(self.party.services.node_config, self.state, self.name)
        layout = self.party.layout
        to_split, fitted = KnownNodes(self.party).splits(np.asarray(nodes), np.asarray(others))
        check_fits(self.name, "others", to_split, Within(-1, len(names) - 1))
        sides, kept = np.zeros(len(slots), dtype=np.uint8), np.zeros((len(slots), 5), np.int32)
        # Split by split, the places of rows in the flat arrays.
        flat, fit, left = to_split.reshape(-1), fitted.reshape(-1), np.zeros(to_split.size, bool)
        order = np.argsort(flat, kind="stable")  # a radix sort, as split numbers are narrow
        bounds = np.searchsorted(flat[order], np.arange(len(slots) + 1))
        for i, slot in enumerate(slots):
            column, at = layout.locate(int(slot))
            own = order[bounds[i] : bounds[i + 1]]
            rows = own if len(to_split) == 1 else own % to_split.shape[1]
            codes, inside = self.party.codes[rows, column], fit[own]
            side = bool(missing_left[i])
            if not (codes[inside] == layout.n_bins[column]).any():
                goes = layout.goes_left(codes[inside], column, at, False)
                side = bool(2 * int(goes.sum()) >= len(goes))
            left[own] = goes = layout.goes_left(codes, column, at, side)
            check_sizes(self.party, int(goes.sum()), len(own))
            sides[i], kept[i] = side, (*names[i], column, at, side)
        content = hashlib.blake2b(kept.tobytes() + to_split.tobytes(), digest_size=16).digest()
        count_sides(self.party, (to_split >= 0).sum(axis=0), layout, content)
        self.state[_SPLITS] = np.concatenate([self.splits, kept])
        return {"left": np.packbits(left[flat >= 0]), "missing_left": sides}

    @property
    def splits(self) -> Splits:
        """All own splits so far: tree, node, column, place of the slot, where missing cells go."""
        found = self.state.get(_SPLITS)
        return np.zeros((0, 5), dtype=np.int32) if found is None else np.asarray(found)


def check_sizes(party: Party, n_left: int, n_rows: int) -> None:
    """Raise if a side of a split has fewer rows than the node's policy demands."""
    least = party.policy.min_rows or 0
    if min(n_left, n_rows - n_left) < least:
        raise PolicyError(
            f"party {party.name!r}",
            key_of("min_rows"),
            f"which of {n_rows:,} rows are on which side of a split, of which one has "
            f"{min(n_left, n_rows - n_left):,}",
            f"{least:,} rows on each side",
        )


def bits_of_winner(n_slots: int) -> float:
    """Return how many bits of a row the best split of its node can tell at most.

    Where one row's gradient is far above all others', the winner follows its codes: so a server
    could choose gradients (no node sees them), and each winner would name a code of that row.
    """
    return float(np.log2(2 * n_slots + 1))


def count_winners(
    party: Party, node: Indices, layout: SlotLayout, n_slots: int, binding: bytes
) -> None:
    """Write down first what best splits tell of rows; node (n_trees, n_samples): -1 for none."""
    levels = int(party.state.get(_LEVELS, 0)) + len(node)
    if levels > int(party.state[SIDES]):
        raise ProtocolError(
            f"party {party.name!r}: it is asked for {levels} levels of trees, and the run agreed "
            f"to {party.state[SIDES]} in all ('n_sides'); who runs the server?"
        )
    party.state[_LEVELS] = levels
    bits = (node >= 0).sum(axis=0) * bits_of_winner(n_slots)
    count_sides(party, bits, layout, binding, what=_WINNERS)


def count_order(party: Party, node: Indices, layout: SlotLayout, binding: bytes) -> None:
    """Write down first what the order of levels tells of rows; node (n_trees, n_samples).

    As with winners: a row whose gradient is far above all others' is in the level that comes first.
    """
    bits = (node >= 0).sum(axis=0) * bits_of_levels(layout)
    content = binding + b" order"  # beside the winners of the same message
    count_sides(party, bits, layout, content, what=_ORDER)


def count_sides(
    party: Party,
    number: Indices | Numbers,
    layout: SlotLayout,
    content: bytes,
    receiver: str = "server",
    what: str = _WHAT,
) -> None:
    """Write down, before it is told, a bit of a row for each split, until its codes are all told.

    Shapes: number (n_samples,): how many splits each row comes to now.
    """
    positions, most = np.asarray(party.positions), bits_of_codes(layout)
    party.privacy_ledger.note_nothing("bits")  # unless some follow
    if party.state.get(_ALL_TOLD) == most:
        return
    told = np.asarray(party.state.get(_TOLD, np.zeros(len(positions))), dtype=float)
    now = np.where(positions >= 0, number[np.maximum(positions, 0)], 0)
    bits = np.minimum(now, most - told)
    for count in np.unique(bits[bits > 0]):
        chosen = bits == count
        party.open_bits(
            chosen, float(count), content=content, agreed=True, what=what, receiver=receiver
        )
    party.state[_TOLD] = told = told + bits
    if (told[positions >= 0] >= most - ROUNDING).all():
        party.state[_ALL_TOLD] = most


def bits_of_codes(layout: SlotLayout) -> float:
    """Return how many bits the codes of a row have, a missing cell being a code."""
    return float(np.log2(np.array(layout.n_bins) + 1.0).sum())


def bits_of_levels(layout: SlotLayout) -> float:
    """Return how many bits of a row the order of levels of nominal columns can tell at most."""
    return float(np.log2(np.array(layout.n_bins)[np.array(layout.nominal, dtype=bool)] + 1.0).sum())


def check_openings(
    party: Party, layout: SlotLayout, n_sides: int, *, growing: bool = False
) -> None:
    """Refuse a run that could tell more bits of a row than the node allows, before it begins.

    A node that states ``policy.openings`` would else stop it half-way: bits told, and no model.
    `growing`: whether the best splits of nodes are told as well, which may be of any party.
    """
    limit = party.policy.openings
    told = n_sides * _MOST_OF_SPLIT + bits_of_levels(layout) if growing else float(n_sides)
    most = min(told, bits_of_codes(layout))
    if limit is not None and most > limit + ROUNDING:
        raise PolicyError(
            f"party {party.name!r}",
            key_of("openings"),
            f"up to {most:.1f} bits of a row ({_WHAT}: a row comes to {n_sides:,} splits at most, "
            f"and its codes have {bits_of_codes(layout):.1f} bits)",
            f"{limit:g} bits of a row over all runs",
            "grow fewer trees, shallower ones or with fewer bins, or its owner would have to set "
            f"{key_of('openings')}={math.ceil(most)}",
        )
