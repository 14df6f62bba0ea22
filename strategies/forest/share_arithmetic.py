"""Shares of the products of slots with the labels, dealt once: the arithmetic.

A forest's targets never change. So the product of each slot's indicator X (0 or 1 for each row)
with the target y of the row, of which every node's sums are made, can be shared element by element
between the owner of the column and its helper, and the server has no part in what follows. With
R the key stream of all parties, rho and P streams of the server's:

    owner k     knows X, R, P and  y + rho      Z = -R (y + rho) - P
    helper l    knows R, rho   and  W           V = W + R rho
    server      knows U = X + R, y, rho, P      W = U y + P,  sent to the helper

and ``Z + V = X y`` modulo 2^64. Both know which rows are in a node, so each adds its share up over
these rows. A last column has shares of y itself, ``y + rho`` and ``-rho``: totals of nodes, and the
sums of leaves.

Z is hidden from the helper by P, W from it by P, y from the owner by rho; U from the server by R.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strategies.trees.node_sums import BLOCK_BYTES, Blocks, Indices, Ring, dense_sums


def dealt(masked: Blocks, width: int, target: Ring, pad: Blocks) -> Ring:
    """Return ``W = U y + P``; the server's part.

    Shapes: target (n_rows,): ``y``, 0 where a row has no label.
    """
    out = np.empty((len(target), width), dtype=np.uint64)
    for start, stop in _blocks(out.shape):
        np.multiply(masked(start, stop), target[start:stop, None], out=out[start:stop])
        out[start:stop] += pad(start, stop)
    return out


def owner_matrix(width: int, stream: Blocks, pad: Blocks, masked_target: Ring) -> Ring:
    """Return ``Z``, and ``y + rho`` as its last column.

    Shapes: masked_target (n_rows,): ``y + rho``; returns (n_rows, width + 1).
    """
    out = np.empty((len(masked_target), width + 1), dtype=np.uint64)
    for start, stop in _blocks(out.shape):
        own = out[start:stop, :width]
        np.multiply(stream(start, stop), masked_target[start:stop, None], out=own)
        own += pad(start, stop)
        np.negative(own, out=own)
    out[:, width] = masked_target
    return out


def helper_matrix(dealt: Ring, widths: Sequence[int], streams: Sequence[Blocks], rho: Ring) -> Ring:
    """Return ``V`` of all that a party helps, side by side, and ``-rho`` as the last column.

    Shapes: dealt (n_rows, n_helped): ``W`` of the owners, side by side; rho (n_rows,); returns
    (n_rows, n_helped + 1).
    """
    out = np.empty((len(rho), dealt.shape[1] + 1), dtype=np.uint64)
    at = 0
    for width, stream in zip(widths, streams, strict=True):
        for start, stop in _blocks((len(rho), width)):
            own = out[start:stop, at : at + width]
            np.multiply(stream(start, stop), rho[start:stop, None], out=own)
            own += dealt[start:stop, at : at + width]
        at += width
    np.negative(rho, out=out[:, -1])
    return out


def node_sums(
    matrix: Blocks, width: int, node: Indices, weight: npt.NDArray[np.integer], counts: list[int]
) -> Ring:
    """Return weighted sums of a share's rows over the nodes of several trees, tree after tree.

    Shapes: matrix (n_block, width): A share, uint64; node (n_trees, n_rows): place of each row's
    node among those of its tree, -1 for none; weight (n_trees, n_rows): how often each tree has
    each row; returns (sum of counts, width).
    """
    parts = [
        (node[[t]], weight[[t]].astype(np.uint64), count) for t, count in enumerate(counts) if count
    ]
    if not parts:
        return np.zeros((0, width), dtype=np.uint64)
    return np.concatenate(dense_sums(matrix, width, parts))


def _blocks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    rows = max(1, BLOCK_BYTES // (8 * max(shape[1], 1)))
    return [(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]
