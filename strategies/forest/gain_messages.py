"""What the parties of a forest send the arbiter, so that it compares gains and knows no more.

With 0 and 1 (or whole numbers) as targets, H rows in a node and Y the sum of their targets, a split
changes the loss in proportion to ``N^2 / (H_L H_R)``, with ``N = H Y_L - H_L Y``. The owner of the
column knows H_L; of ``Y_L`` and ``Y`` there are two shares (`share_arithmetic`). The product
``H_L Y`` of what one party knows with what two share takes the arbiter: of each candidate it gets

    X = a H Y_L + a H_L t + r Y + r t     in shares,
    F = a H_L + r                         from the owner,
    T = Y + t                             in shares, of each node,

with r and t uniform modulo 2^64 and unknown to it, and ``X - F T = a N``. So what it learns is
``x = a N + e_1``, and of the owner's counts ``b_L H_L + e_2`` and ``b_R H_R + e_3``: as in boosting
(`blinding`). All arrays are full, in one random order, and under pads that cancel over the
parties, so that nothing tells whose candidate stands where.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Bytes, Flags, Ring
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.arithmetic import helpers, own_place
from flwr_vertical.products.streams import stream
from strategies.trees.arbiter import under_cancelling_bits
from strategies.trees.binning import SlotLayout
from strategies.trees.blinding import TOP, Factors, noise
from strategies.trees.gain import best_of, candidates, of_slots, signed
from strategies.trees.node_sums import Indices

FLAT = 2.0**-28
"""Gains below it count as none: what is left of the noise where all rows of a node are alike."""

_ROWS = 4  # X, F and the counts of both sides


@dataclass(frozen=True)
class Used:
    """The slots in use, as one party sees them."""

    number: int  # Of the party, among all
    slots: Indices  # (n_used,): their numbers over all parties
    starts: Indices  # (n_parties,): first slot of each party
    mine: Indices  # (n_own,): the party's slots among those in use
    theirs: Indices  # (n_helped,): slots of those that it helps, in the order of its shares
    observed: Indices  # (n_used,): of each slot in use, that of its column's observed rows
    columns: Indices  # Own columns in use
    # own, helped: Columns of the party's two shares that belong to slots in use; the last one is
    # the total
    own: Indices
    helped: Indices

    @classmethod
    def of(
        cls,
        names: list[str],
        layout: SlotLayout,
        widths: list[int],
        observed: Indices,
        usable: Bytes,
        name: str,
    ) -> "Used":
        """Work them out.

        Shapes: observed (n_slots,): of each slot of all parties, that of its column's observed
        rows; usable (n_slots,): whether the trees may use it; all slots of a column alike.
        """
        own = own_place(name, names, widths, layout.n_slots)
        starts = np.concatenate([[0], np.cumsum(widths)])
        last = np.repeat(np.cumsum(layout.widths) - 1, layout.widths)
        if (observed[starts[own] : starts[own + 1]] != starts[own] + last).any() or (
            usable != usable[observed]
        ).any():
            raise ProtocolError(
                f"party {name!r}: arguments 'observed' and 'usable' take the slots of a column "
                "apart; expected all or none of a column, and its last one as that of its rows"
            )
        slots = np.flatnonzero(usable)
        place = np.full(len(usable), -1, dtype=np.int64)
        place[slots] = np.arange(len(slots))
        party = np.searchsorted(starts, slots, side="right") - 1
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
            own,
            slots,
            starts[:-1],
            place[slots[party == own]],
            np.concatenate([np.zeros(0, int), *(place[slots[party == k]] for k in helped)]),
            place[observed[slots]],
            np.flatnonzero(np.isin(layout.starts, mine)),
            np.append(mine, widths[own]),
            np.concatenate([np.zeros(0, int), *of_helped, *total]),
        )

    def layout(self, whole: SlotLayout) -> SlotLayout:
        """Return the layout of the own columns in use."""
        return whole.of_columns(self.columns)


@dataclass(frozen=True)
class Sums:
    """A party's sums over the active nodes of a level."""

    # (n_nodes, n_own): rows of the fit in the own slots, as often as the tree has them
    counts: Ring
    total: Ring  # (n_nodes,): such rows of each node
    own: Ring  # (n_nodes, n_own + 1): its share as owner, the last column that of ``Y``
    helped: Ring  # (n_nodes, n_helped + 1): its share as helper; no columns if it helps nobody


def limits_of(total: Ring, target_bits: int) -> Array:
    """Return what is above ``|N|`` and ``H_L``, (2, n_nodes), given the rows of each node."""
    rows = total.astype(np.float64)
    return np.stack([rows * rows * 2.0 ** (target_bits - 2) + 1.0, rows + 1.0])


def parcel(
    sums: Sums, used: Used, factors: Factors, limits: Array, seed: bytes, number: int, own: bytes
) -> Ring:
    """Return what a party sends, uint64: four values of each candidate, and one of each node.

    `seed` is known to all parties, `own`, of the noise, to this one alone.
    """
    n_nodes, n_slots = len(sums.total), len(used.observed)
    shape = n_nodes, 2 * n_slots
    whole = sums.total[:, None]
    out = np.zeros((_ROWS, *shape), dtype=np.uint64)
    r = stream(seed, f"votes r {number}", shape)
    t = stream(seed, f"votes t {number}", (n_nodes,))[:, None]

    at, inside = of_slots(used.mine), _local(used.mine, used.observed)
    a, left = factors.numerator[:, at], candidates(sums.counts, inside, sums.total)
    share = candidates(sums.own[:, :-1], inside, sums.own[:, -1])
    out[0][:, at] = a * whole * share + a * left * t + r[:, at] * t
    out[1][:, at] = a * left + r[:, at]
    out[2][:, at] = factors.left[:, at] * left
    out[3][:, at] = factors.right[:, at] * (whole - left)
    # Noise on a N: as much as either factor may be, which leaves no divisor to be found.
    limits = np.stack([np.minimum(limits[0], TOP / limits[0]), limits[1]])
    out[[0, 2, 3], :, at[:, None]] += noise(own, limits, len(at)).transpose(2, 0, 1)

    if sums.helped.shape[1]:
        at, inside = of_slots(used.theirs), _local(used.theirs, used.observed)
        share = candidates(sums.helped[:, :-1], inside, sums.helped[:, -1])
        out[0][:, at] += factors.numerator[:, at] * whole * share
    # The second party has ``y + rho`` as its share of targets, the first ``-rho``.
    halves = {0: sums.helped, 1: sums.own}
    half = halves[used.number][:, -1] if used.number < 2 else np.zeros(n_nodes, dtype=np.uint64)
    out[0] += r * half[:, None]
    totals = half + t[:, 0] if used.number == 1 else half
    flat = np.concatenate([*(factors.placed(row).ravel() for row in out), totals])
    # Pads that add up to 0 over all parties.
    before, after = (
        stream(seed, f"votes pads {number} {neighbour}", (len(flat),))
        for neighbour in (used.number, (used.number + 1) % len(used.starts))
    )
    return np.asarray(flat + (before - after))


def marks(legal: Flags, used: Used, factors: Factors, seed: bytes, number: int) -> Flags:
    """Return a share of all parties' marks of legal candidates: the own, under bits that cancel."""
    every = np.zeros(factors.order.shape, dtype=bool)
    every[:, of_slots(used.mine)] = legal.reshape(len(legal), -1)
    of_parties = used.number, len(used.starts)
    return under_cancelling_bits(factors.placed(every), seed, "votes marks", number, *of_parties)


def factors_of(seed: bytes, number: int, limits: Array, n_slots: int) -> Factors:
    """Return factors and order of a message's candidates: known to all parties, to nobody else."""
    own = stream(seed, f"votes factors {number}", (4,)).tobytes()
    return Factors.of(own, limits, 2 * n_slots)


def winners(total: Ring, legal: Flags) -> Flags:
    """Return which places of each node win: the largest gain, and those equal to it.

    Shapes: legal (n_nodes, n_candidates); returns (n_nodes, n_candidates): none of a node without
    a legal candidate.
    """
    n_nodes = len(legal)
    rows = total[: _ROWS * legal.size].reshape(_ROWS, *legal.shape)
    numerator = rows[0] - rows[1] * total[_ROWS * legal.size :].reshape(n_nodes, 1)
    x, left, right = (signed(v).astype(np.float64) for v in (numerator, rows[2], rows[3]))
    return best_of(x, left, right, legal, FLAT)


def _local(slots: Indices, observed: Indices) -> Indices:
    """Return, of each of these slots, the place among them of its column's observed rows."""
    place = np.full(len(observed), -1, dtype=np.int64)
    place[slots] = np.arange(len(slots))
    return np.asarray(place[observed[slots]])
