"""Sums over the rows of nodes: of a party's slots, and of the matrices that hide them.

All of it modulo 2^w, w being 64 or 32: exact, whatever the order. A row that is in no node has
number -1.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array

from flwr_vertical.products.streams import KeyStream
from strategies.trees.binning import Codes, Flags, Layout

Ring = npt.NDArray[np.unsignedinteger]
Indices = npt.NDArray[np.signedinteger]
Blocks = Callable[[int, int], Ring]

BLOCK_BYTES = 1 << 26
"""Of a matrix that is made anew for each use, at a time."""

_HALF = np.uint64(2**32 - 1)
_EXACT_ROWS = 1 << 20  # sums of so many numbers below 2^32 are exact in float64


def slot_sums(layout: Layout, codes: Codes, node: Indices, vector: Ring, n_nodes: int) -> Ring:
    """Return sums of a vector over the rows of each slot and node.

    Parameters
    ----------
    layout : Layout
        Slots of the party's columns.
    codes : numpy.ndarray of shape (n_rows, n_columns)
    node : numpy.ndarray of shape (n_rows,)
    vector : numpy.ndarray of shape (n_rows,), uint64 or uint32
    n_nodes : int

    Returns
    -------
    numpy.ndarray of shape (n_nodes, n_slots), of the vector's dtype
    """
    out = np.zeros((n_nodes, layout.n_slots), dtype=np.uint64)
    inside = np.flatnonzero(node >= 0)
    for first in range(0, len(inside), _EXACT_ROWS):
        rows = inside[first : first + _EXACT_ROWS]
        at, values = node[rows].astype(np.intp), vector[rows].astype(np.uint64)
        halves = [(values & _HALF).astype(np.float64)]
        if vector.dtype == np.uint64:
            halves.append((values >> np.uint64(32)).astype(np.float64))
        places = zip(layout.starts, layout.widths, layout.n_bins, layout.nominal, strict=True)
        for j, (start, width, bins, nominal) in enumerate(places):
            key = at * (bins + 1) + codes[rows, j]
            found = np.zeros((n_nodes, bins), dtype=np.uint64)
            for place, half in enumerate(halves):
                counted = np.bincount(key, half, n_nodes * (bins + 1)).reshape(n_nodes, -1)
                found += counted[:, :bins].astype(np.uint64) << np.uint64(32 * place)
            slots = out[:, start : start + width]
            if nominal:
                slots[:, :bins] += found
                slots[:, bins] += found.sum(axis=1)
            else:
                slots += np.cumsum(found, axis=1)
    return out.astype(vector.dtype)


def dense_sums(blocks: Blocks, width: int, parts: list[tuple[Indices, Ring, int]]) -> list[Ring]:
    """Return sums of vectors times the rows of a large matrix, by node.

    Parameters
    ----------
    blocks : Callable[[int, int], numpy.ndarray of shape (n_block, width)]
        Gives rows of the matrix.
    width : int
        Its columns.
    parts : list of (node, vector, n_nodes)
        For each sum the number of each row's node, shape (n_rows,); the vector, of the matrix'
        dtype; the number of nodes. The matrix is gone through once for all of them.

    Returns
    -------
    list of numpy.ndarray of shape (n_nodes, width)
    """
    if not parts:
        return []
    n_rows, dtype = len(parts[0][0]), parts[0][1].dtype
    ends = np.cumsum([count for _, _, count in parts])
    total = np.zeros((int(ends[-1]), width), dtype=dtype)
    for start, stop in _ranges(n_rows, width * dtype.itemsize, blocks):
        total += _weights(parts, start, stop) @ blocks(start, stop)
    return np.split(total, ends[:-1])


def _weights(parts: list[tuple[Indices, Ring, int]], start: int, stop: int) -> csc_array:
    """Return the vectors by node and row, shape (nodes of all parts, stop - start).

    Column by column, so that its product with a matrix reads the matrix once, in order.
    """
    ends = np.cumsum([count for _, _, count in parts])
    first = [0, *ends[:-1].tolist()]
    nodes = np.stack([node[start:stop] for node, _, _ in parts], axis=1)
    inside = nodes >= 0
    number = (nodes + np.array(first, dtype=nodes.dtype))[inside].astype(np.int32)
    values = np.stack([vector[start:stop] for _, vector, _ in parts], axis=1)[inside]
    bounds = np.concatenate([[0], np.cumsum(inside.sum(axis=1))]).astype(np.int32)
    return csc_array((values, number, bounds), shape=(int(ends[-1]), stop - start))


def _ranges(n_rows: int, row_bytes: int, blocks: Blocks) -> Iterator[tuple[int, int]]:
    held = isinstance(getattr(blocks, "__self__", None), Held)
    size = n_rows if held else max(1, BLOCK_BYTES // max(row_bytes, 1))
    for start in range(0, n_rows, max(size, 1)):
        yield start, min(start + size, n_rows)


class Held:
    """A matrix that lies in memory, or in a file that is mapped into it."""

    def __init__(self, matrix: Ring) -> None:
        self.matrix = matrix

    def rows(self, start: int, stop: int) -> Ring:
        """Return rows, without a copy."""
        return self.matrix[start:stop]


class Streamed:
    """A matrix of a key stream, made anew block by block.

    Parameters
    ----------
    stream : KeyStream
        Of shape (n_rows, n_columns): 64 bits each, of which narrower numbers take the lower ones.
    dtype : numpy dtype
    """

    def __init__(self, stream: KeyStream, dtype: npt.DTypeLike) -> None:
        self._stream, self._dtype = stream, np.dtype(dtype)

    def rows(self, start: int, stop: int) -> Ring:
        """Return rows."""
        return self._stream.rows(start, stop).astype(self._dtype, copy=False)


def legal_splits(
    layout: Layout, codes: Codes, node: Indices, n_nodes: int, min_child: int
) -> Flags:
    """Return which splits a node may take.

    Both sides hold `min_child` rows. Of splits that do the same to the node's rows, because a bin
    is empty or no cell is missing, the first alone is legal.

    Parameters
    ----------
    layout, codes, node, n_nodes
        As in `slot_sums`.
    min_child : int

    Returns
    -------
    numpy.ndarray of shape (n_nodes, n_slots, 2), bool
        With missing cells to the right, and to the left.
    """
    out = np.zeros((n_nodes, layout.n_slots, 2), dtype=bool)
    rows = np.flatnonzero(node >= 0)
    at = node[rows].astype(np.intp)
    total = np.bincount(at, minlength=n_nodes)[:, None]
    places = zip(layout.starts, layout.widths, layout.n_bins, layout.nominal, strict=True)
    for j, (start, width, bins, nominal) in enumerate(places):
        key = at * (bins + 1) + codes[rows, j]
        count = np.bincount(key, minlength=n_nodes * (bins + 1)).reshape(n_nodes, -1)
        missing, own = count[:, bins:], count[:, :bins]
        if nominal:
            left = np.concatenate([own, own.sum(axis=1, keepdims=True)], axis=1)
            first = np.concatenate([own > 0, np.ones((n_nodes, 1), dtype=bool)], axis=1)
        else:
            left, first = own.cumsum(axis=1), own > 0
        whole = np.arange(width) == width - 1
        slots = out[:, start : start + width]
        slots[:, :, 0] = first & (left >= min_child) & (total - left >= min_child)
        left = left + missing
        slots[:, :, 1] = first & (left >= min_child) & (total - left >= min_child)
        slots[:, :, 1] &= (missing > 0) & ~whole
    return out
