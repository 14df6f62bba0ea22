"""Sums over the rows of nodes: of a party's slots, and of the matrices that hide them.

All of it modulo 2^64: exact, whatever the order. A row that is in no node has number -1.

In which node of a level each row is follows from one bit a row and the nodes above: at the roots a
bit says whether a row is of its tree's fit; below, whether it went to the right. Trees share the
numbers of a level's nodes; children of one parent are neighbours.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from flwr_vertical.arrays import Bytes, Flags, Integers32
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.streams import KeyStream
from flwr_vertical.protocol.arguments import Shape, Within, check_fits
from strategies.trees.binning import Codes, SlotLayout, narrowest, unpacked

Ring = npt.NDArray[np.unsignedinteger]
Indices = npt.NDArray[np.signedinteger]
Matrix: TypeAlias = Ring | KeyStream | Callable[[int, int], Ring]
"""A large matrix: in memory, or mapped into it; made anew for each use; or given block by block."""

BLOCK_BYTES = 1 << 24
"""Of a matrix that is made anew for each use, at a time."""

_FEW = 0.6
"""Share of rows up to which single rows of a key stream are made faster than all of them."""


def code_sums(layout: SlotLayout, codes: Codes, node: Indices, vectors: Ring, n_nodes: int) -> Ring:
    """Return sums of vectors over the rows of each code and node, and how many rows there are.

    Shapes: codes (n_rows, n_columns); node (n_rows,); vectors (n_vectors, n_rows); returns
    (n_nodes, n_codes, n_vectors + 1): the codes of all columns, column by column; that of missing
    cells is a column's last.
    """
    bounds = _code_bounds(layout)
    shift, n_codes, n_columns = np.array(bounds[:-1], dtype=np.int32), bounds[-1], codes.shape[1]
    total = np.zeros((n_nodes * n_codes, len(vectors) + 1), dtype=vectors.dtype)
    inside = np.flatnonzero(node >= 0)
    size = max(1, BLOCK_BYTES // (16 * max(n_columns, 1)))
    for start in range(0, len(inside), size):
        rows = inside[start : start + size]
        # One sparse product adds up all vectors of all columns: row by row, n_columns numbers each.
        key = node[rows].astype(np.int32)[:, None] * np.int32(n_codes) + (codes[rows] + shift)
        ends = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(n_columns)
        ones = np.ones(key.size, dtype=vectors.dtype)
        picked = csc_array((ones, key.reshape(-1), ends), shape=(len(total), len(rows)))
        numbers = np.ones((len(rows), len(vectors) + 1), dtype=vectors.dtype)
        for k, vector in enumerate(vectors):
            numbers[:, k] = vector[rows]
        total += picked @ numbers
    return total.reshape(n_nodes, n_codes, len(vectors) + 1)


def to_sent(layout: SlotLayout, sums: Ring) -> Ring:
    """Return sums over slots that are sent, (n_nodes, n_sent), from those over codes."""
    found = [sums[:, :0]]
    for j, width in enumerate(layout.sent):
        observed = sums[:, _codes_of(layout, j)][:, :-1]
        below = observed.cumsum(axis=1, dtype=sums.dtype)
        if layout.nominal[j]:
            singles = observed.shape[1] - layout.complete[j]
            found += [observed[:, :singles], below[:, below.shape[1] - (width - singles) :]]
        else:
            found.append(below[:, :width])
    return np.concatenate(found, axis=1)


def slot_sums(layout: SlotLayout, codes: Codes, node: Indices, vector: Ring, n_nodes: int) -> Ring:
    """Return sums of a vector, (n_rows,), over the rows of slots and nodes, (n_nodes, n_slots)."""
    sums = code_sums(layout, codes, node, vector[None], n_nodes)[..., 0]
    total = sums[:, : _code_bounds(layout)[:2][-1]].sum(axis=1, dtype=sums.dtype)
    return layout.slots_of(to_sent(layout, sums), total)


def block_of(matrix: Matrix, start: int, stop: int) -> Ring:
    """Return rows of a large matrix, (stop - start, ...), without a copy if it is in memory."""
    if isinstance(matrix, np.ndarray):
        return matrix[start:stop]
    return matrix.rows(start, stop) if isinstance(matrix, KeyStream) else matrix(start, stop)


def dense_sums(matrix: Matrix, width: int, node: Indices, vectors: Ring, n_nodes: int) -> Ring:
    """Return sums of vectors times the rows of a large matrix, by node.

    Shapes: matrix (n_rows, width); node (n_trees, n_rows): number of each row's node in each tree;
    vectors (n_vectors, n_trees, n_rows), of the matrix' dtype; returns (n_vectors, n_nodes, width).
    """
    total = np.zeros((len(vectors) * n_nodes, width), dtype=vectors.dtype)
    for rows, part in _parts(node, matrix, width):
        weights = _weights(node[:, rows], vectors[:, :, rows], n_nodes)
        if weights.nnz and width:
            total += weights @ part()
    return total.reshape(len(vectors), n_nodes, width)


def _parts(
    node: Indices, matrix: Matrix, width: int
) -> Iterator[tuple[slice | Indices, Callable[[], Ring]]]:
    """Give the rows to add up, part by part: of a key stream only those that are in a node."""
    n_rows = node.shape[1]
    size = n_rows if isinstance(matrix, np.ndarray) else BLOCK_BYTES // max(8 * width, 1)
    size = max(1, size)
    if isinstance(matrix, KeyStream):
        needed = np.flatnonzero((node >= 0).any(axis=0))
        if len(needed) < _FEW * n_rows:
            for rows in np.split(needed, range(size, len(needed), size)):
                yield rows, partial(matrix.rows_at, rows)
            return
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        yield slice(start, stop), partial(block_of, matrix, start, stop)


def _weights(node: Indices, vectors: Ring, n_nodes: int) -> csc_array:
    """Return the vectors by node and row, column by column, as its product reads a matrix once."""
    n_vectors, (n_trees, n_rows) = len(vectors), node.shape
    used = node >= 0
    at = np.flatnonzero(used.T)  # row by row
    if n_trees > 1:
        rows, trees = np.divmod(at, n_trees)
        at = trees * n_rows + rows
    index = np.empty((len(at), n_vectors), dtype=np.int32)
    value = np.empty(index.shape, dtype=vectors.dtype)
    node_of = node.reshape(-1).take(at)
    for k, vector in enumerate(vectors):
        np.add(node_of, k * n_nodes, out=index[:, k], casting="unsafe")
        value[:, k] = vector.reshape(-1).take(at)
    bounds = np.zeros(n_rows + 1, dtype=np.int32)
    np.cumsum(used.sum(axis=0, dtype=np.int32) * np.int32(n_vectors), out=bounds[1:])
    shape = n_vectors * n_nodes, n_rows
    return csc_array((value.reshape(-1), index.reshape(-1), bounds), shape=shape)


def legal_splits(
    layout: SlotLayout, codes: Codes, node: Indices, n_nodes: int, min_child: int
) -> Flags:
    """Return which splits a node may take; see `legal_of`."""
    none = np.zeros((0, len(codes)), dtype=np.uint32)
    return legal_of(layout, code_sums(layout, codes, node, none, n_nodes)[..., 0], min_child)


def legal_of(layout: SlotLayout, counts: Ring, min_child: int) -> Flags:
    """Return which splits a node may take, from how many rows have each code.

    Both sides hold `min_child` rows. Of splits that do the same to the node's rows, because a bin
    is empty or no cell is missing, the first alone is legal.

    Shapes: counts (n_nodes, n_codes); returns (n_nodes, n_slots, 2): with missing cells to the
    right, and to the left.
    """
    n_nodes = len(counts)
    out = np.zeros((n_nodes, layout.n_slots, 2), dtype=bool)
    for j, (start, width) in enumerate(zip(layout.starts, layout.widths, strict=True)):
        count = counts[:, _codes_of(layout, j)].astype(np.int64)
        total = count.sum(axis=1, keepdims=True)
        missing, own = count[:, -1:], count[:, :-1]
        left, first = own.cumsum(axis=1), own > 0
        if layout.nominal[j]:
            stop = own.shape[1] - layout.complete[j]
            below = slice(stop - (width - own.shape[1]), stop)
            left = np.concatenate([own, left[:, below]], axis=1)
            first = np.concatenate([first, first[:, below]], axis=1)
            first[:, -1] |= not layout.complete[j]
        left, first = left[:, :width], first[:, :width]
        whole = (np.arange(width) == width - 1) & (not layout.complete[j])
        slots = out[:, start : start + width]
        slots[:, :, 0] = first & (left >= min_child) & (total - left >= min_child)
        left = left + missing
        slots[:, :, 1] = first & (left >= min_child) & (total - left >= min_child)
        slots[:, :, 1] &= (missing > 0) & ~whole
    return out


@lru_cache(maxsize=64)  # asked for by column
def _code_bounds(layout: SlotLayout) -> list[int]:
    """Return where each column's codes begin among those of all columns, and how many there are."""
    return [0, *np.cumsum([bins + 1 for bins in layout.n_bins]).tolist()]


def _codes_of(layout: SlotLayout, column: int) -> slice:
    bounds = _code_bounds(layout)
    return slice(bounds[column], bounds[column + 1])


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
