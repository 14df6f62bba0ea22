"""In which node of a level each row is: told by one bit a row, as nodes follow from those above.

At the roots a bit says whether a row is of its tree's fit; below, whether it went to the right.
Trees share the numbers of a level's nodes; children of one parent are neighbours.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Bytes, Flags, Integers32
from flwr_vertical.errors import ProtocolError
from flwr_vertical.protocol.arguments import Shape, Within, check_fits
from strategies.trees.binning import SlotLayout, narrowest, unpacked
from strategies.trees.node_sums import Indices, Matrix, Ring, dense_sums

# Under a prefix that the server may not write to.
_NODES, _FIT = "node.trees.nodes", "node.trees.fit"


def sides_of(node: Indices, parent: Indices) -> Bytes:
    """Return what parties are told, packed bits (n_trees, ceil(n_rows / 8)).

    Shapes: node (n_trees, n_rows): number of each row's node, -1 for none; parent (n_nodes,): -1 of
    roots.
    """
    return np.packbits(
        node >= 0 if parent[0] < 0 else (node >= 0) & (node & 1).astype(bool), axis=1
    )


def nodes_below(above: Indices | None, parent: Indices, sides: Flags) -> Indices:
    """Return the number of each row's node, (n_trees, n_rows), -1 for none.

    Shapes: above (n_trees, n_rows): of the level before; parent (n_nodes,): number of each node's
    parent there, -1 of roots; sides (n_trees, n_rows).
    """
    if len(parent) == len(sides) and (parent < 0).all() and len(parent):
        return np.where(sides, narrowest(np.arange(len(sides)))[:, None], np.int8(-1))
    last = -1 if above is None or above.shape != sides.shape else int(above.max(initial=-1))
    pairs = parent[: len(parent) // 2 * 2].reshape(-1, 2)
    if (
        len(parent) != pairs.size
        or not len(parent)
        or (np.diff(pairs) != 0).any()
        or (parent.min() < 0 or parent.max() > last)
    ):
        raise ProtocolError(
            f"argument 'parent' ({parent.tolist()[:8]}) is of no level below one of {last + 1} "
            "nodes: expected -1 at all roots, one for each tree, and else both children of a node "
            "together"
        )
    first = np.full(last + 2, -1)  # the last entry is that of -1
    first[pairs[:, 0]] = np.arange(0, len(parent), 2)
    below = narrowest(first)[above]
    return np.where(below >= 0, below + sides.astype(np.int8), below)


class KnownNodes:
    """What a party keeps of the level that grows."""

    def __init__(self, party: Any) -> None:
        self._party = party

    def take(self, parent: Indices, sides: Bytes) -> Indices:
        """Go on to the level that a message tells of; return the node of each row."""
        flags = self._unpacked(sides)
        above = self._party.state.get(_NODES)
        node = nodes_below(None if above is None else np.asarray(above), parent, flags)
        if parent[0] < 0:
            self._party.state[_FIT] = np.asarray(sides)
        self._party.state[_NODES] = node
        return node

    def splits(self, nodes: Indices, others: Bytes) -> tuple[Indices, Flags]:
        """Return the number of the split that each row comes to, -1 for none; which are of the fit.

        Shapes: nodes (n_splits,): the node of each; others (1, n_bits, ceil(n_others / 8)), packed:
        the split of each row that is not of the fit, tree by tree; returns twice (n_trees, n_rows).
        """
        name = self._party.name
        if _NODES not in self._party.state:
            raise ProtocolError(
                f"party {name!r} was told of no nodes: 'share' comes before 'route'"
            )
        node, fit = np.asarray(self._party.state[_NODES]), self._unpacked(self._party.state[_FIT])
        number = np.full(int(node.max(initial=-1)) + 2, -1)
        check_fits(name, "nodes", nodes, Within(0, len(number) - 2))
        number[nodes] = np.arange(len(nodes))
        split = narrowest(number)[node]
        count = int((~fit).sum())
        check_fits(name, "others", others, Shape(1, None, -(-count // 8)))
        split[~fit] = unpacked(others, count)[0]
        return split, fit

    def forget(self) -> None:
        """Drop what is kept."""
        for key in (_NODES, _FIT):
            self._party.state.pop(key, None)

    def _unpacked(self, bits: Bytes) -> Flags:
        found = np.unpackbits(np.asarray(bits), axis=1, count=self._party.n_samples)
        return np.asarray(found.astype(bool))


@dataclass(frozen=True)
class Places:
    """Where rows are summed up: their nodes, and which trees may use a party's columns."""

    node: Indices  # (n_trees, n_rows): number of each row's node, -1 for none
    n_nodes: int
    active: Indices  # (n_active,): nodes that may be split
    direct: Indices  # (n_direct,): nodes of which sums are made
    # (n_trees or 1, n_own_columns): of each party, which of its columns each tree may use
    columns: list[Flags]

    @classmethod
    def of(
        cls,
        node: Indices,
        direct: Indices,
        active: Indices,
        usable: Bytes,
        layouts: list[SlotLayout],
    ) -> "Places":
        """Take the arguments of `ShareSteps.share`."""
        ends = np.cumsum([len(own.n_bins) for own in layouts])[:-1]
        columns = np.split(usable.astype(bool), ends, axis=1)
        return cls(node, len(direct), active, np.flatnonzero(direct >= 0), columns)

    def usable(self, tree: int, party: int) -> Flags:
        """Return which of a party's columns a tree may use."""
        own = self.columns[party]
        return np.asarray(own[tree % len(own)])

    def trees(self, party: int) -> list[int]:
        """Return the trees that may use any column of a party: no others have sums of its slots."""
        return [t for t in range(len(self.node)) if self.usable(t, party).any()]

    def dense(self, party: int, half: Ring, rows: Matrix, width: int) -> Ring:
        """Return sums of g and h, (2, n_trees, n_rows), times a matrix of a party's slots."""
        trees = self.trees(party)
        every = len(trees) == len(self.node)  # the usual case, without copies
        node, half = (self.node, half) if every else (self.node[trees], half[:, trees])
        node = renumbered(node, self.direct, self.n_nodes)
        return dense_sums(rows, width, node, half, len(self.direct))


def renumbered(node: Indices, kept: Indices, n_nodes: int) -> Integers32:
    """Return the place of each row's node among `kept`, -1 for rows in none of these."""
    number = np.full(n_nodes + 1, -1, dtype=np.int32)  # the last entry is that of -1
    number[kept] = np.arange(len(kept))
    return number.take(node, mode="wrap")
