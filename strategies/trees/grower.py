"""Growing trees, level by level: which nodes are split, and what comes of it.

All trees of a batch (one for each class) share the rounds of a level (`rounds`). Which side of the
last level's splits rows are on goes to the server only.
"""

import numpy as np

from flwr_vertical.arrays import Array, Bytes, Flags
from strategies.trees.gain import Derivatives, level_of
from strategies.trees.node_sums import Indices
from strategies.trees.rounds import LevelNodes, LevelRounds
from strategies.trees.tree import Growth, Tree, TreeNode, divide


class Grower:
    """Grows trees, batch by batch."""

    def __init__(self, rounds: LevelRounds, growth: Growth) -> None:
        self._rounds, self.growth, self.slots = rounds, growth, rounds.slots

    def grow(
        self, g: Array, h: Array, inside: Flags, usable: Bytes, first: int, routed: Flags
    ) -> list[Tree]:
        """Grow one tree for each row of gradients.

        Shapes: g, h (n_trees, n_samples): derivatives of the loss; inside (n_trees, n_samples):
        rows that each tree is fitted to; the others are routed only; usable (n_trees, n_columns):
        columns that each tree may use, or all of them; routed (n_trees, n_samples):
        rows that go down each tree, those of the fit among them.
        """
        n_trees, n_rows = g.shape
        directions = self.slots.directions
        trees: list[Tree] = [
            [TreeNode(np.flatnonzero(routed[t]), int(inside[t].sum()))] for t in range(n_trees)
        ]
        l2 = self.growth.l2
        derivatives = [Derivatives.of(g[t], h[t], inside[t], l2) for t in range(n_trees)]
        # Numbers of the nodes of a level: (tree, node); children of one parent are neighbours.
        level = [(t, 0) for t in range(n_trees)]
        parent = np.full(n_trees, -1)
        direct = np.arange(n_trees)
        for depth in range(self.growth.max_depth):
            node = np.full((n_trees, n_rows), -1, dtype=np.int64)
            for q, (t, number) in enumerate(level):
                rows = trees[t][number].rows
                node[t, rows[inside[t, rows]]] = q
            tree_of = np.array([t for t, _ in level])
            known = level_of(node, len(level), g, derivatives, tree_of)
            splits = [self._may_split(trees, at) for at in level]
            active = np.flatnonzero(np.array(splits) & ~known.flat)
            if not len(active):
                break
            nodes = LevelNodes(node, parent, direct, active)
            fresh = derivatives if depth == 0 else None
            may_use = np.atleast_2d(usable)
            won = self._rounds.winners(nodes, known, fresh, may_use, self.growth.min_child)
            chosen = {level[q]: found for q, found in zip(active, won, strict=True) if found >= 0}
            if not chosen:
                break
            routed_to = self._rounds.route(trees, level, chosen, inside, first)
            for (t, number), left in routed_to.items():
                of_tree = inside[t], g[t], h[t]
                direction = int(directions[chosen[t, number] // 2])
                divide(trees[t], trees[t][number], left, *of_tree, l2, direction)
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
        """Return the nodes of the next level, their parents, and whose sums are made."""
        below: list[tuple[int, int]] = []
        parent: list[int] = []
        direct: list[bool] = []
        if depth + 1 < self.growth.max_depth:
            for q, (t, number) in enumerate(level):
                node = trees[t][number]
                if (t, number) not in chosen or node.left < 0:
                    continue
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
