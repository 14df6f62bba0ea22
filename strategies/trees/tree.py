"""A tree while it grows, and the values of its leaves; no protocol."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags
from strategies.trees.node_sums import Indices

MIN_WEIGHT = 1e-3
"""The least sum of second derivatives of a leaf, as scikit-learn's."""


ROUNDING = 1e-9
"""Below this share of a node's loss, what a split within bounds gains counts as nothing."""


@dataclass
class TreeNode:
    """A node of a tree that grows."""

    rows: Indices  # All rows in it, of the fit or not
    n_fit: int  # How many of them are of the fit
    party: int = -1
    slot: int = -1
    missing_left: bool = False
    left: int = -1
    right: int = -1
    gain: float = 0.0
    # low, high: What values of leaves in it may be, before the learning rate; see `monotone`
    low: float = -np.inf
    high: float = np.inf


Tree = list[TreeNode]


def divide(
    tree: Tree,
    node: TreeNode,
    left: Flags,
    inside: Flags,
    g: Array,
    h: Array,
    l2: float,
    direction: int = 0,
) -> None:
    """Make the two nodes below, and note by how much the split lowers the loss.

    A node stays a leaf where a side's loss is as good as flat (its value could be of any size), or
    where sides that are brought into the node's range do not lower the loss.

    Shapes: left (n_rows of the node,); inside (n_samples,): rows of the fit; g, h (n_samples,).
    """
    parts = [node.rows, node.rows[left], node.rows[~left]]
    fits = [rows[inside[rows]] for rows in parts]
    weights = [float(h[fit].sum()) + l2 for fit in fits]
    if min(weights) < MIN_WEIGHT:
        return
    slopes = [float(g[fit].sum()) for fit in fits]
    values = [
        float(np.clip(-slope / weight, node.low, node.high))
        for slope, weight in zip(slopes, weights, strict=True)
    ]
    losses = [
        slope * value + weight * value**2 / 2.0
        for slope, weight, value in zip(slopes, weights, values, strict=True)
    ]
    gain = losses[0] - losses[1] - losses[2]
    bounded = bool(np.isfinite([node.low, node.high]).any())
    if bounded and gain <= ROUNDING * abs(losses[0]):  # both sides may lie at the same bound
        return
    node.gain = gain
    tree += [TreeNode(rows, len(fit)) for rows, fit in zip(parts[1:], fits[1:], strict=True)]
    node.left, node.right = len(tree) - 2, len(tree) - 1
    below, above = (tree[-2], tree[-1]) if direction >= 0 else (tree[-1], tree[-2])
    for child in (below, above):
        child.low, child.high = node.low, node.high
    if direction:
        below.high = above.low = (values[1] + values[2]) / 2.0


def leaf_values(tree: Tree, g: Array, h: Array, inside: Flags, l2: float) -> Array:
    """Return the Newton step of each leaf, 0 of other nodes; shape (n_nodes,)."""
    out = np.zeros(len(tree))
    for i, node in enumerate(tree):
        if node.left < 0:
            fit = node.rows[inside[node.rows]]
            value = -g[fit].sum() / max(h[fit].sum() + l2, MIN_WEIGHT)
            out[i] = np.clip(value, node.low, node.high)
    return out


def quantile_values(tree: Tree, residuals: Array, inside: Flags, quantile: float) -> Array:
    """Return a quantile of each leaf's residuals, 0 of other nodes; shape (n_nodes,).

    The pinball loss has no second derivative, so its leaves are fitted anew (Friedman, 2001,
    Algorithm 3).
    """
    out = np.zeros(len(tree))
    for i, node in enumerate(tree):
        if node.left < 0:
            out[i] = np.quantile(residuals[node.rows[inside[node.rows]]], quantile)
    return out
