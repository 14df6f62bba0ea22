"""The rounds of a level with encrypted gradients, as the server takes them: two, as in `rounds`.

=========  =========================================================================================
round      what travels
=========  =========================================================================================
add_up     down: which node each row is in, and once a tree the gradients of its rows, encrypted;
           up: their sums over bins, of one child of each node, and which splits are legal
route      as in `rounds`
=========  =========================================================================================

A party needs no other one: there is no helper, no arbiter and no seed of the parties.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.errors import PartyError
from flwr_vertical.server import Federation
from strategies.trees.binning import Layout, narrowest
from strategies.trees.encrypted.scheme import G_BITS, Server
from strategies.trees.features import Slots
from strategies.trees.gain import Curvature, Level, best_of, candidates
from strategies.trees.monotone import right_way
from strategies.trees.rounds import LevelNodes, LevelRounds
from strategies.trees.secret_shares import with_siblings


class EncryptedRounds(LevelRounds):
    """Takes the rounds."""

    def __init__(self, federation: Federation, slots: Slots) -> None:
        super().__init__(federation, slots, False, {})
        self._scheme = Server()
        self._g: Integers = np.zeros((0, 0), dtype=np.int64)
        self._unit: Array = np.zeros(0)
        self._sums: dict[str, Integers] = {}

    def begin(self, g: Array) -> None:
        """Take the first derivatives of the trees that begin, shape (n_trees, n_samples)."""
        largest = np.maximum(np.abs(g).max(axis=1), 1e-300)
        self._unit = largest * 2.0**-G_BITS
        self._g = np.rint(g / self._unit[:, None]).astype(np.int64)

    def winners(
        self,
        nodes: LevelNodes,
        known: Level,
        curvature: list[Curvature] | None,
        usable: npt.NDArray[np.uint8],
        min_child: int,
    ) -> list[int]:
        """Return the best candidate of each active node, -1 where none is legal; one round."""
        slots, names, active = self.slots, self.slots.names, nodes.active
        common: dict[str, Any] = {
            "node": narrowest(nodes.node),
            "n_nodes": len(nodes.parent),
            "direct": nodes.direct,
            "active": active,
            "min_child": min_child,
        }
        if curvature is not None:
            self._sums = {what: np.zeros((0, 0), dtype=np.int64) for what in ("g", "h")}
            rows = [np.flatnonzero(own >= 0) for own in nodes.node]
            common["public"] = self._scheme.public
            common["gradients"] = [
                self._scheme.encrypt(self._g[t, at], curvature[t].whole[at])
                for t, at in enumerate(rows)
            ]
        own = {
            name: {"usable": usable[:, start : start + width]}
            for name, start, width in zip(names, slots.starts, slots.widths, strict=True)
        }
        replies = self.federation.call("add_up", common, per_party=own)
        opened = [self._opened(name, replies[name], nodes.direct) for name in names]
        for what, made in zip(("g", "h"), zip(*opened, strict=True), strict=True):
            direct_sums: Any = np.concatenate(made, axis=1)
            above: Any = self._sums[what]
            found: Any = with_siblings(direct_sums, nodes.direct, nodes.parent, above)
            self._sums[what] = found
        legal = np.concatenate([np.asarray(replies[n]["legal"], dtype=bool) for n in names], axis=1)
        return self._best(nodes, known, legal.reshape(len(active), -1))

    def _opened(
        self, name: str, told: dict[str, Any], direct: npt.NDArray[np.signedinteger]
    ) -> tuple[Integers, Integers]:
        """Decrypt a party's sums, and return those of its slots, of g and of h."""
        full, sums = np.asarray(told["full"], dtype=bool), told["sums"]
        layout = self.slots.layouts[name]
        if full.shape != (int((direct >= 0).sum()), sum(layout.n_bins)) or len(sums) != len(full):
            raise PartyError(
                name, "add_up", f"sent sums of {full.shape} bins, of {len(sums)} nodes"
            )
        out = np.zeros((2, *full.shape), dtype=np.int64)
        for q, content in enumerate(sums):
            out[:, q, full[q]] = self._scheme.decrypt(bytes(content), int(full[q].sum()))
        return slots_of(out[0], layout), slots_of(out[1], layout)

    def _best(self, nodes: LevelNodes, known: Level, legal: npt.NDArray[np.bool_]) -> list[int]:
        """Return the best legal candidate of each active node by the decrypted sums."""
        active, n_nodes = nodes.active, len(nodes.parent)
        total_g = np.zeros(n_nodes, dtype=np.int64)
        for own, at in zip(self._g, nodes.node, strict=True):
            np.add.at(total_g, at[at >= 0], own[at >= 0])
        observed = self.slots.observed
        sums: dict[str, Any] = {what: found[active] for what, found in self._sums.items()}
        ring: Any = known.total_h[active], total_g[active]
        left = candidates(sums["h"], observed, ring[0]) + known.l2[active, None]
        right = (known.total_h + 2 * known.l2)[active, None] - left
        mean = total_g[active] / np.maximum(known.total_h + 2 * known.l2, 1)[active]
        numerator = candidates(sums["g"], observed, ring[1]) - mean[:, None] * left
        sides = [np.asarray(side, dtype=np.float64) for side in (numerator, left, right)]
        may_win = legal & right_way(sides[0], self._directions)
        wins = best_of(sides[0], sides[1], sides[2], may_win)
        return [int(np.flatnonzero(row)[0]) if row.any() else -1 for row in wins]


def slots_of(bins: Integers, layout: Layout) -> Integers:
    """Return sums over slots from sums over bins.

    Shapes: bins (n_nodes, n_bins of all columns).
    """
    out, at = [], 0
    for count, nominal in zip(layout.n_bins, layout.nominal, strict=True):
        own = bins[:, at : at + count]
        at += count
        if nominal:
            out += [own, own.sum(axis=1, keepdims=True)]
        else:
            out.append(np.cumsum(own, axis=1))
    return np.concatenate(out, axis=1)
