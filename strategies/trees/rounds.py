"""The rounds of a level, as the server takes them: shares, comparison, sides of splits.

Where levels are sorted, once, ranks take the place of the comparison; with open histograms there is
none.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from flwr_vertical.arrays import AnyArray, Array, Bytes, Flags
from flwr_vertical.errors import PartyError
from flwr_vertical.products.arithmetic import helpers
from flwr_vertical.products.streams import SEED_BYTES, stream
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.server import Federation
from strategies.trees.binning import narrowest, packed
from strategies.trees.blinding import WIRE_BYTES, Factors, coarse, from_wire, to_wire
from strategies.trees.gain import (
    Candidates,
    Derivatives,
    LevelGradients,
    best_of,
    columns_of,
    signed,
    to_ring,
)
from strategies.trees.masked_store import Slots
from strategies.trees.monotone import allowed_signs, right_way
from strategies.trees.node_sums import Indices, Places, Ring, sides_of
from strategies.trees.secret_shares import with_siblings
from strategies.trees.tree import Tree


@dataclass(frozen=True)
class LevelNodes:
    """The nodes of a level; children of one parent are neighbours."""

    # (n_trees, n_samples): number of the node that each row of the fit is in, -1 for none;
    # numbers go over all trees
    node: Indices
    parent: Indices  # (n_nodes,): number of each node's parent in the level before, -1 of roots
    # (n_nodes,): numbers of the nodes whose sums are made; -1 where they follow from their
    # siblings'
    direct: Indices
    active: Indices  # (n_active,): nodes that may be split


class LevelRounds:
    """Takes the rounds."""

    def __init__(
        self, federation: Federation, slots: Slots, hidden: bool, keys: dict[str, Any]
    ) -> None:
        self.federation, self.slots = federation, slots
        self.hidden, self._keys = hidden, keys
        self._helper = helpers(slots.names)
        self._pool = ThreadPoolExecutor(1)
        # By party, (2, n_trees, n_samples): its half of g and h; see `secret_shares`
        self._halves: dict[str, Ring] = {}
        self._above = np.zeros((0, 0), dtype=np.uint64)

    def winners(
        self,
        nodes: LevelNodes,
        known: LevelGradients,
        fresh: list[Derivatives] | None,
        usable: Bytes,
        min_child: int,
    ) -> list[int]:
        """Return the best candidate of each active node, -1 where none is legal; two rounds.

        `fresh` has the derivatives of trees that begin.
        """
        return self._compare(self._share(nodes, known, fresh, usable, min_child), known, nodes)

    def ranks(
        self, node: Indices, known: LevelGradients, fresh: Derivatives, min_child: int
    ) -> Indices:
        """Return slots of single levels in the order of their mean gradients; two rounds.

        Shapes: node (1, n_samples): 0 of rows of the fit, -1 of others; returns (n_ranked,): those
        that have `min_child` rows, and leave as many.
        """
        root = LevelNodes(node, np.array([-1]), np.array([0]), np.array([0]))
        usable = np.ones((1, self.slots.n_columns), dtype=np.uint8)
        shares = self._share(root, known, [fresh], usable, min_child, {"ranked": True})
        total_v, total_h = (to_ring(own) for own in (known.total_v, known.total_h))
        every = Candidates.of(self.slots.ordered)
        v, h = every.sums(shares.v, total_v), every.sums(shares.h, total_h)
        if not self.hidden:
            found = np.flatnonzero(shares.legal(self.slots.names, every)[0])
            found = found[np.argsort(signed(v)[0, found] / signed(h)[0, found], kind="stable")]
            found = every.numbers[found]
            return np.asarray(found[found % 2 == 0] // 2)  # with missing cells to the right
        factors = Factors.of(shares.order, limits_of(known, root.active), v.shape[1])
        # The arbiter is not told which end of the order is which.
        reverse = shares.order[0] % 2 == 1
        flips = (signed(factors.numerator) < 0) ^ reverse
        told = self._ask_arbiter("rank", shares, factors, factors.blinded(v, h, h), {
            "flips": np.packbits(factors.placed(flips))
        })  # fmt: skip
        found, group = factors.order[0, told["place"]], np.asarray(told["group"])
        found = every.numbers[found[np.lexsort((found, -group if reverse else group))]]
        return np.asarray(found[found % 2 == 0] // 2)

    def _share(
        self,
        nodes: LevelNodes,
        known: LevelGradients,
        fresh: list[Derivatives] | None,
        usable: Bytes,
        min_child: int,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> "LevelSums":
        """Return the server's shares of sums over slots and active nodes; one round."""
        node, active, direct, parent = nodes.node, nodes.active, nodes.direct, nodes.parent
        slots, names = self.slots, self.slots.names
        common: dict[str, Any] = {
            "names": names,
            "columns": columns_of(slots.ordered),
            "tags": [slots.tags[name] for name in names],
            "sides": sides_of(node, parent),
            "direct": direct,
            "parent": parent,
            "active": active,
            "usable": usable,
            "min_child": min_child,
            **more,
        }
        order = b""
        if self.hidden:
            order = self.federation.random_bytes(SEED_BYTES)
            common |= {"limits": limits_of(known, active), "order": order}
            common["scale"] = narrowest(known.scale[active])
        own = self._begin(fresh) if fresh is not None else {name: {} for name in names}
        slope = to_ring(known.slope[active])
        halves = self._halves_of(slope)
        for name in names if self.hidden else []:
            own[name]["slopes"] = halves[name]
        places = Places.of(node, direct, active, usable, slots.ordered)
        made = self._pool.submit(self._dense, places)
        replies = self.federation.call("share", common, per_party=own)
        # The server's shares of sums over slots of g and of h, (2, n_direct, n_sent).
        own_shares = [_told(replies, n, "owner", s.shape) + s for n, s in made.result().items()]
        sums = np.concatenate(own_shares, axis=2)
        for name in [] if self.hidden else self._helpers:
            at = self._helped_by(name)
            sums[:, :, at] += _told(replies, name, "helper", sums[:, :, at].shape)
        parts = [*sums, self._helped_slopes(replies, sums.shape[1:])] if self.hidden else sums
        self._above = with_siblings(
            np.concatenate(list(parts), axis=1), direct, parent, self._above
        )
        share_g, share_h, *helped = np.split(self._above[active], len(parts), axis=1)
        share_v = to_ring(known.scale[active])[:, None] * share_g - slope[:, None] * share_h
        if self.hidden:
            share_v -= self._of_slopes(replies, halves, helped[0])
        return LevelSums(replies, share_v, share_h, order)

    def route(
        self,
        trees: list[Tree],
        level: list[tuple[int, int]],
        chosen: dict[tuple[int, int], int],
        inside: Flags,
        first: int,
    ) -> dict[tuple[int, int], Flags]:
        """Have the owners of the winners split the nodes; one round.

        Shapes: level (n_nodes,): tree and node of each; chosen (tree, node): the candidate that
        won; inside (n_trees, n_samples): rows that
        each tree is fitted to; returns (tree, node), (n_rows of the node,): which of its rows go
        to the left.
        """
        by_party: dict[str, list[tuple[int, int]]] = {}
        for (t, number), candidate in chosen.items():
            node = trees[t][number]
            node.party, slot = self.slots.locate(candidate // 2)
            node.missing_left, node.slot = bool(candidate % 2), slot
            by_party.setdefault(self.slots.names[node.party], []).append((t, number))
        own, order = {}, {}
        for name, places in by_party.items():
            split = np.full(inside.shape, -1, dtype=np.int64)
            for i, (t, number) in enumerate(places):
                split[t, trees[t][number].rows] = i
            nodes = [trees[t][number] for t, number in places]
            order[name] = split
            own[name] = {
                "names": np.array([(first + t, number) for t, number in places], dtype=np.int32),
                "slots": np.array([node.slot for node in nodes], dtype=np.int32),
                "missing_left": np.array([node.missing_left for node in nodes], dtype=np.uint8),
                "nodes": narrowest([level.index(place) for place in places]),
                "others": packed(split[~inside][None]),
            }
        found = {}
        replies = self.federation.call("route", per_party=own, parties=list(own))
        for name, places in by_party.items():
            split = order[name]
            left = np.zeros(split.shape, dtype=bool)
            comes = split >= 0
            left[comes] = np.unpackbits(replies[name]["left"], count=int(comes.sum())) == 1
            for i, (t, number) in enumerate(places):
                node = trees[t][number]
                node.missing_left = bool(replies[name]["missing_left"][i])
                found[t, number] = left[t, node.rows]
        return found

    # -- the server's shares -----------------------------------------------------------------

    def _begin(self, fresh: list[Derivatives]) -> dict[str, dict[str, Any]]:
        """Halve the derivatives of trees that begin; return what each party is told of them."""
        whole = np.stack([[own.first for own in fresh], [own.second for own in fresh]])
        self._above = np.zeros((0, 0), dtype=np.uint64)
        seed = self.federation.random_bytes(SEED_BYTES)
        rho = stream(seed, "rho", whole.shape)
        first, *others = self.slots.names
        self._halves = dict.fromkeys(others, -rho) | {first: to_ring(whole) + rho}
        masked = {first: {"masked_gradients": self._halves[first]}}
        return masked | {name: {"rho": seed} for name in others}

    def _halves_of(self, slope: Ring) -> dict[str, Ring]:
        """Return random halves of the slopes: one of the first party, one of all others."""
        first, *others = self.slots.names
        words = self.federation.random_bytes(8 * len(slope))
        half = np.frombuffer(words, dtype="<u8").astype(np.uint64)
        return dict.fromkeys(others, half) | {first: slope - half}

    @property
    def _helpers(self) -> list[str]:
        return list(dict.fromkeys(self._helper.values()))

    def _dense(self, places: Places) -> dict[str, Ring]:
        """Return ``U' half`` of each party, for g and for h; while the parties work."""
        out = {}
        for k, (name, width) in enumerate(zip(self.slots.names, self.slots.widths, strict=True)):
            half = self._halves[self._helper[name]]
            out[name] = places.dense(k, half, self.slots.masked[name], width)
        return out

    def _helped_slopes(self, replies: dict[str, dict[str, Any]], shape: tuple[int, ...]) -> Ring:
        """Return helpers' shares of h under pads, (n_direct, n_sent)."""
        out = np.zeros(shape, dtype=np.uint64)
        for name in self._helpers:
            at = self._helped_by(name)
            out[:, at] = _told(replies, name, "helped_slopes", out[:, at].shape)
        return out

    def _of_slopes(
        self, replies: dict[str, dict[str, Any]], halves: dict[str, Ring], helped: Ring
    ) -> Ring:
        """Return the server's share of owners' halves of slopes times helpers' shares of h.

        Shapes: helped (n_active, n_sent): under pads.
        """
        ends = np.cumsum(self.slots.widths)[:-1]
        parts = [
            part * halves[name][:, None] - _told(replies, name, "owned_slopes", part.shape)
            for name, part in zip(self.slots.names, np.split(helped, ends, axis=1), strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def _helped_by(self, helper: str, sent: bool = True) -> Indices:
        """Return the slots of the parties that one helps, among those that are sent or all."""
        helped = [self._helper[name] == helper for name in self.slots.names]
        widths = [own.n_sent if sent else own.n_slots for own in self.slots.ordered]
        return np.flatnonzero(np.repeat(helped, widths))

    def _compare(self, shares: "LevelSums", known: LevelGradients, nodes: LevelNodes) -> list[int]:
        slots, active = self.slots, nodes.active
        every = Candidates.of(slots.ordered)
        ring = {
            name: to_ring(getattr(known, name)[active])
            for name in ("correction", "total_v", "total_h", "l2")
        }
        directions = slots.directions[every.numbers // 2]
        numerator = every.sums(shares.v, ring["total_v"]) + ring["correction"][:, None]
        left = every.sums(shares.h, ring["total_h"]) + ring["l2"][:, None]
        right = (ring["total_h"] + 2 * ring["l2"])[:, None] - left
        if not self.hidden:
            sums = [signed(part).astype(np.float64) for part in (numerator, left, right)]
            may_win = shares.legal(slots.names, every) & right_way(sums[0], directions)
            wins = best_of(sums[0], sums[1], sums[2], may_win)
            return [int(every.numbers[row][0]) if row.any() else -1 for row in wins]
        factors = Factors.of(shares.order, limits_of(known, active), numerator.shape[1])
        signs = {}
        if directions.any():
            may = allowed_signs(signed(factors.numerator), directions)
            signs["signs"] = np.packbits([factors.placed(plane) for plane in may])
        blinded = factors.blinded(numerator, left, right)
        told = self._ask_arbiter("compare", shares, factors, blinded, signs)
        bounds = np.concatenate([[0], np.cumsum(told["count"])])
        won = [told["place"][a:b] for a, b in pairwise(bounds)]
        return [
            int(every.numbers[factors.order[q, places].min()]) if len(places) else -1
            for q, places in enumerate(won)
        ]

    def _ask_arbiter(
        self,
        step: str,
        shares: "LevelSums",
        factors: Factors,
        blinded: Ring,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Add the helpers' blinded shares to the own ones; they are under the parties' pads."""
        names, total = self.slots.names, coarse(blinded)
        for name in self._helpers:
            at = Candidates.of(self.slots.ordered).places(self._helped_by(name, sent=False))
            theirs = _told(shares.replies, name, "blinded", (*total[:, :, at].shape, WIRE_BYTES))
            total[:, :, at] += from_wire(theirs)
        asked = {
            **self._keys,
            **more,
            "number": int(shares.replies[names[0]]["number"]),
            "parcels": [shares.replies[name]["parcel"] for name in names],
            "shares": to_wire(factors.placed(total)),
        }
        return self.federation.call(step, asked, parties=[ARBITER])[ARBITER]


@dataclass(frozen=True)
class LevelSums:
    """The server's shares of a level, or with open histograms the sums."""

    replies: dict[str, dict[str, Any]]
    v: Ring  # (n_active, n_sent)
    h: Ring  # (n_active, n_sent)
    order: bytes  # See `Factors`

    def legal(self, names: list[str], every: Candidates) -> Flags:
        """Return which candidates are, (n_active, n_candidates), where parties told it."""
        told = np.concatenate([self.replies[name]["legal"] for name in names], axis=1)
        return np.asarray(told, dtype=bool).reshape(len(told), -1)[:, every.numbers]


def _told(
    replies: dict[str, dict[str, Any]], name: str, what: str, shape: tuple[int, ...]
) -> AnyArray:
    """Return an array of a party's, which has that shape."""
    told = np.asarray(replies[name][what])
    if told.shape != shape:
        raise PartyError(name, "share", f"sent {what!r} of shape {told.shape}, expected {shape}")
    return told


def limits_of(known: LevelGradients, active: Indices) -> Array:
    """Return what no sum of active nodes exceeds, (2, n_active); see `Factors`."""
    return np.stack([known.limit_v[active], known.limit_h[active]])
