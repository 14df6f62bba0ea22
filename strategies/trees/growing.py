"""Growing trees over a federation: the server's half, level by level, three rounds a level.

=========  =========================================================================================
round      what travels
=========  =========================================================================================
share      down: which node each row is in; v + rho to the owners (and h + rho, once a tree), the
           seeds of rho to their helpers; up: shares under pads; of helpers blinded and sealed
compare    to the arbiter: these parcels, and the server's own blinded shares; back: who wins
route      down, to the owners of the winners: which split; up: one bit of each row
=========  =========================================================================================

With open histograms there is no second round. All trees of a batch (one for each class) share the
rounds. What the last level's split tells goes to the server only.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import PartyError
from flwr_vertical.products.streams import SEED_BYTES, stream
from flwr_vertical.products.vector_products import helpers
from flwr_vertical.protocol.messages import ARBITER
from flwr_vertical.server import Federation
from strategies.trees.binning import Layout, narrowest
from strategies.trees.blinding import Factors
from strategies.trees.gains import (
    Array,
    Curvature,
    Level,
    best_of,
    candidates,
    combined,
    level_of,
    signed,
    to_ring,
)
from strategies.trees.shares import renumbered, with_siblings
from strategies.trees.sums import Held, Indices, Ring, dense_sums

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Growth:
    """How trees grow.

    Parameters
    ----------
    max_depth : int
    min_child : int
        The fewest rows of the fit in a node.
    l2 : float
    """

    max_depth: int
    min_child: int
    l2: float


@dataclass
class Node:
    """A node of a tree that grows.

    Parameters
    ----------
    rows : numpy.ndarray, int64
        All rows in it, of the fit or not.
    n_fit : int
        How many of them are of the fit.
    """

    rows: Indices
    n_fit: int
    party: int = -1
    slot: int = -1
    missing_left: bool = False
    left: int = -1
    right: int = -1
    gain: float = 0.0


Tree = list[Node]


@dataclass
class Slots:
    """The slots of all parties, and their rows under key streams.

    Parameters
    ----------
    names : list of str
    layouts : dict of str to Layout
    tags : dict of str to bytes
    masked : dict of str to numpy.ndarray of shape (n_samples, n_slots)
    """

    names: list[str]
    layouts: dict[str, Layout]
    tags: dict[str, bytes] = field(default_factory=dict)
    masked: dict[str, Ring] = field(default_factory=dict)

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
    def observed(self) -> Indices:
        """Of each slot, that of its column's observed rows: the last one."""
        columns = self.columns
        last = np.flatnonzero(np.append(columns[1:] != columns[:-1], True))
        return np.asarray(last[columns])

    def locate(self, slot: int) -> tuple[int, int]:
        """Return the place of a slot's party, and its number there."""
        k = int(np.searchsorted(self.starts, slot, side="right")) - 1
        return k, slot - self.starts[k]


class Grower:
    """Grows trees, batch by batch.

    Parameters
    ----------
    federation : Federation
    slots : Slots
    growth : Growth
    hidden : bool
        Whether an arbiter compares gains; else the parties open histograms.
    keys : dict
        Arguments of `CompareSteps.compare` that stay the same.
    """

    def __init__(
        self,
        federation: Federation,
        slots: Slots,
        growth: Growth,
        hidden: bool,
        keys: dict[str, Any],
    ) -> None:
        self.federation, self.slots, self.growth = federation, slots, growth
        self.hidden, self._keys = hidden, keys
        self.dtype = np.dtype(np.uint64 if hidden else np.uint32)
        self._helper = helpers(slots.names)
        self._pool = ThreadPoolExecutor(1)
        self._above: dict[str, Ring] = {}

    def grow(
        self, g: Array, h: Array, inside: Flags, usable: npt.NDArray[np.uint8], first: int
    ) -> list[Tree]:
        """Grow one tree for each row of gradients.

        Parameters
        ----------
        g, h : numpy.ndarray of shape (n_trees, n_samples)
            Derivatives of the loss.
        inside : numpy.ndarray of shape (n_trees, n_samples), bool
            Rows that each tree is fitted to; the others are routed only.
        usable : numpy.ndarray of shape (n_slots,), uint8
            Slots of the columns that may be used.
        first : int
            Number of the first tree in the model.

        Returns
        -------
        list of list of Node
            By tree; the first node is its root.
        """
        n_trees, n_rows = g.shape
        everybody = np.arange(n_rows)
        trees: list[Tree] = [[Node(everybody, int(inside[t].sum()))] for t in range(n_trees)]
        curvature = [Curvature.of(h[t], inside[t], self.growth.l2) for t in range(n_trees)]
        masks_h = self._masks(np.stack([own.whole for own in curvature]))
        # Numbers of the nodes of a level: (tree, node); children of one parent are neighbours.
        level = [(t, 0) for t in range(n_trees)]
        parent = np.full(n_trees, -1)
        direct = np.arange(n_trees)
        for depth in range(self.growth.max_depth):
            node = np.full((n_trees, n_rows), -1, dtype=np.int64)
            for q, (t, number) in enumerate(level):
                rows = trees[t][number].rows
                node[t, rows[inside[t, rows]]] = q
            of_tree = np.array([t for t, _ in level])
            known = combined(level_of(node, len(level), g, curvature, of_tree))
            splits = [self._may_split(trees, at) for at in level]
            active = np.flatnonzero(np.array(splits) & ~known.flat)
            if not len(active):
                break
            won = self._winners(
                node, parent, direct, active, known, masks_h, usable, with_h=depth == 0
            )
            chosen = {level[q]: found for q, found in zip(active, won, strict=True) if found >= 0}
            if not chosen:
                break
            self._route(trees, chosen, inside, first, g, h)
            level, parent, direct = self._below(trees, level, chosen, depth)
            if not level:
                break
        return trees

    # -- which nodes -------------------------------------------------------------------------

    def _may_split(self, trees: list[Tree], at: tuple[int, int]) -> bool:
        return trees[at[0]][at[1]].n_fit >= 2 * self.growth.min_child

    def _below(
        self,
        trees: list[Tree],
        level: list[tuple[int, int]],
        chosen: dict[tuple[int, int], int],
        depth: int,
    ) -> tuple[list[tuple[int, int]], Indices, Indices]:
        """Return the nodes of the next level, their parents, and whose sums of h are made."""
        below: list[tuple[int, int]] = []
        parent: list[int] = []
        direct: list[bool] = []
        if depth + 1 < self.growth.max_depth:
            for q, (t, number) in enumerate(level):
                if (t, number) not in chosen:
                    continue
                node = trees[t][number]
                pair = [(t, node.left), (t, node.right)]
                if not any(self._may_split(trees, at) for at in pair):
                    continue
                left_is_smaller = trees[t][node.left].n_fit <= trees[t][node.right].n_fit
                below += pair
                parent += [q, q]
                direct += [left_is_smaller, not left_is_smaller]
        flags = np.array(direct, dtype=bool)
        numbered = np.where(flags, np.cumsum(flags) - 1, -1)
        return below, np.array(parent, dtype=np.int64), numbered

    # -- rounds ------------------------------------------------------------------------------

    def _masks(self, vectors: npt.NDArray[np.int64]) -> dict[str, tuple[bytes, Ring, Ring]]:
        """Return, by helper, the seed of rho, rho, and the vectors under it."""
        out = {}
        for name in dict.fromkeys(self._helper.values()):
            seed = self.federation.random_bytes(SEED_BYTES)
            rho = stream(seed, "rho", vectors.shape).astype(self.dtype, copy=False)
            out[name] = seed, rho, to_ring(vectors, self.dtype) + rho
        return out

    def _winners(
        self,
        node: Indices,
        parent: Indices,
        direct: Indices,
        active: Indices,
        known: Level,
        masks_h: dict[str, tuple[bytes, Ring, Ring]],
        usable: npt.NDArray[np.uint8],
        with_h: bool,
    ) -> list[int]:
        """Return the best candidate of each active node, -1 where none is legal."""
        masks_v = self._masks(known.vector)
        slots, names = self.slots, self.slots.names
        n_nodes = len(parent)
        common: dict[str, Any] = {
            "names": names,
            "widths": slots.widths,
            "tags": [slots.tags[name] for name in names],
            "observed": slots.observed,
            "node": narrowest(node),
            "direct": direct,
            "parent": parent,
            "active": active,
            "usable": usable,
            "min_child": self.growth.min_child,
        }
        limits = np.stack([known.limit_v[active], known.limit_h[active]])
        order = b""
        if self.hidden:
            order = self.federation.random_bytes(SEED_BYTES)
            common |= {"limits": limits, "order": order}
        own: dict[str, dict[str, Any]] = {}
        for name in names:
            helper = self._helper[name]
            own[name] = {"masked_v": masks_v[helper][2]}
            if with_h:
                own[name]["masked_h"] = masks_h[helper][2]
            if name in masks_v:
                own[name] |= {"rho_v": masks_v[name][0]}
                if with_h:
                    own[name] |= {"rho_h": masks_h[name][0]}
        of_v = renumbered(node, active, n_nodes)
        of_h = renumbered(node, np.flatnonzero(direct >= 0), n_nodes)
        made = self._pool.submit(self._dense, of_v, of_h, masks_v, masks_h, len(active))
        replies = self.federation.call("share", common, per_party=own)
        share_v, share_h = self._own_shares(replies, made)
        if with_h:
            self._above = {}
        above = self._above.get("h", np.zeros((0, 0), dtype=self.dtype))
        self._above["h"] = with_siblings(share_h, direct, parent, above)
        return self._compare(replies, share_v, self._above["h"][active], known, active, order)

    def _dense(
        self,
        of_v: Indices,
        of_h: Indices,
        masks_v: dict[str, tuple[bytes, Ring, Ring]],
        masks_h: dict[str, tuple[bytes, Ring, Ring]],
        n_active: int,
    ) -> dict[str, tuple[Ring, Ring]]:
        """Return ``U' rho`` of each party, for v and for h; while the parties work."""
        out = {}
        n_direct = int(of_h.max(initial=-1)) + 1
        for name, width in zip(self.slots.names, self.slots.widths, strict=True):
            helper = self._helper[name]
            parts = [
                (at, rho, count)
                for places, masks, count in (
                    (of_v, masks_v, n_active),
                    (of_h, masks_h, n_direct),
                )
                for at, rho in zip(places, masks[helper][1], strict=True)
            ]
            sums = dense_sums(Held(self.slots.masked[name]).rows, width, parts)
            n = len(of_v)
            out[name] = _added(sums[:n]), _added(sums[n:])
        return out

    def _own_shares(
        self, replies: dict[str, dict[str, Any]], made: "Future[dict[str, tuple[Ring, Ring]]]"
    ) -> tuple[Ring, Ring]:
        dense = made.result()
        found: tuple[list[Ring], list[Ring]] = ([], [])
        for name in self.slots.names:
            for out, what, own in zip(found, ("owner_v", "owner_h"), dense[name], strict=True):
                told = np.asarray(replies[name][what])
                if told.shape != own.shape:
                    raise PartyError(
                        name, "share", f"sent shares of shape {told.shape}, expected {own.shape}"
                    )
                out.append(told - own)
        return np.concatenate(found[0], axis=1), np.concatenate(found[1], axis=1)

    def _compare(
        self,
        replies: dict[str, dict[str, Any]],
        share_v: Ring,
        share_h: Ring,
        known: Level,
        active: Indices,
        order: bytes,
    ) -> list[int]:
        slots = self.slots
        ring = {
            name: to_ring(getattr(known, name)[active], self.dtype)
            for name in ("correction", "total_v", "total_h", "l2")
        }
        if not self.hidden:
            share_v, share_h = share_v.copy(), share_h.copy()
            for name in slots.names:
                helped = [n for n in slots.names if self._helper[n] == name]
                if not helped:
                    continue
                places = np.repeat([n in helped for n in slots.names], slots.widths)
                share_v[:, places] += replies[name]["helper_v"]
                share_h[:, places] += replies[name]["helper_h"]
        numerator = (
            candidates(share_v, slots.observed, ring["total_v"]) + ring["correction"][:, None]
        )
        left = candidates(share_h, slots.observed, ring["total_h"]) + ring["l2"][:, None]
        right = (ring["total_h"] + 2 * ring["l2"])[:, None] - left
        if not self.hidden:
            legal = np.concatenate([replies[name]["legal"] for name in slots.names], axis=1)
            sums = [signed(part).astype(np.float64) for part in (numerator, left, right)]
            wins = best_of(
                sums[0], sums[1], sums[2], np.asarray(legal, dtype=bool).reshape(len(active), -1)
            )
            return [int(np.flatnonzero(row)[0]) if row.any() else -1 for row in wins]
        limits = np.stack([known.limit_v[active], known.limit_h[active]])
        factors = Factors.of(order, limits, numerator.shape[1])
        told = self.federation.call(
            "compare",
            {
                **self._keys,
                "number": int(replies[slots.names[0]]["number"]),
                "parcels": [replies[name]["parcel"] for name in slots.names],
                "shares": factors.blinded(numerator, left, right),
            },
            parties=[ARBITER],
        )[ARBITER]
        bounds = np.concatenate([[0], np.cumsum(told["count"])])
        won = [told["place"][a:b] for a, b in pairwise(bounds)]
        return [
            int(factors.order[q, places].min()) if len(places) else -1
            for q, places in enumerate(won)
        ]

    def _route(
        self,
        trees: list[Tree],
        chosen: dict[tuple[int, int], int],
        inside: Flags,
        first: int,
        g: Array,
        h: Array,
    ) -> None:
        """Have the owners of the winners split the nodes."""
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
                "split": narrowest(split),
            }
        fit = {"fit": np.packbits(inside)}
        replies = self.federation.call("route", fit, per_party=own, parties=list(own))
        for name, places in by_party.items():
            split = order[name]
            left = np.zeros(split.shape, dtype=bool)
            comes = split >= 0
            left[comes] = np.unpackbits(replies[name]["left"], count=int(comes.sum())) == 1
            for i, (t, number) in enumerate(places):
                node = trees[t][number]
                node.missing_left = bool(replies[name]["missing_left"][i])
                self._divide(trees[t], node, left[t, node.rows], inside[t], g[t], h[t])

    def _divide(
        self, tree: Tree, node: Node, left: Flags, inside: Flags, g: Array, h: Array
    ) -> None:
        """Make the two nodes below, and note by how much the split lowers the loss."""
        gain = 0.0
        for rows, sign in ((node.rows, -1), (node.rows[left], 1), (node.rows[~left], 1)):
            fit = rows[inside[rows]]
            gain += sign * g[fit].sum() ** 2 / (h[fit].sum() + self.growth.l2)
            if sign > 0:
                tree.append(Node(rows, len(fit)))
        node.gain = gain / 2.0
        node.left, node.right = len(tree) - 2, len(tree) - 1


def leaf_values(tree: Tree, g: Array, h: Array, inside: Flags, l2: float) -> Array:
    """Return the Newton step of each leaf, 0 of other nodes; shape (n_nodes,).

    Parameters
    ----------
    tree : list of Node
    g, h : numpy.ndarray of shape (n_samples,)
    inside : numpy.ndarray of shape (n_samples,), bool
        Rows of the fit.
    l2 : float
    """
    out = np.zeros(len(tree))
    for i, node in enumerate(tree):
        if node.left < 0:
            fit = node.rows[inside[node.rows]]
            out[i] = -g[fit].sum() / (h[fit].sum() + l2)
    return out


def _added(sums: list[Ring]) -> Ring:
    total = sums[0].copy()
    for other in sums[1:]:
        total += other
    return total
