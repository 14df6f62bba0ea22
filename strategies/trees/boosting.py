"""The loop of boosting: slots, gradients, trees that grow, predictions so far, when to stop."""

from typing import Any

import numpy as np

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Array, Bytes, Flags, Integers32
from strategies.trees.contributions import partial_dependence
from strategies.trees.gain import Derivatives, level_of
from strategies.trees.masked_store import Slots, fetch
from strategies.trees.model import LEAF, Ensembles, TreesModel
from strategies.trees.node_sums import Indices
from strategies.trees.objectives import Objective, weights_of
from strategies.trees.rounds import LevelNodes, LevelRounds
from strategies.trees.tree import Tree, TreeNode, divide, leaf_values, quantile_values

_A_FIFTH, _MOST = 0.2, 2_000
"""What is held out by default: more of many samples would cost more than stopping too late."""

_CURVE = 32
"""Steps at least, to whose nearest mean predictions are told, in a deviation of the labels."""

# Columns of the table of nodes.
_FIELDS = (
    "tree", "number", "party", "left", "right", "missing_left", "value", "gain", "cover", "slot",
    "rows",
)  # fmt: skip


class Grower:
    """Grows trees, level by level; all trees of a batch share the rounds of a level (`rounds`).

    Which side of the last level's splits rows are on goes to the server only.
    """

    def __init__(self, rounds: LevelRounds, settings: Any) -> None:
        self._rounds, self._settings, self.slots = rounds, settings, rounds.slots

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
        l2 = self._settings.l2
        derivatives = [Derivatives.of(g[t], h[t], inside[t], l2) for t in range(n_trees)]
        # Numbers of the nodes of a level: (tree, node); children of one parent are neighbours.
        level = [(t, 0) for t in range(n_trees)]
        parent = np.full(n_trees, -1)
        direct = np.arange(n_trees)
        for depth in range(self._settings.max_depth):
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
            won = self._rounds.winners(nodes, known, fresh, may_use, self._settings.min_child)
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

    def _may_split(self, trees: list[Tree], at: tuple[int, int]) -> bool:
        return trees[at[0]][at[1]].n_fit >= 2 * int(self._settings.min_child)

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
        if depth + 1 < self._settings.max_depth:
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


class Boosting:
    """What boosting has come to; labels are NaN where unknown, held (n_samples, n_parties)."""

    def __init__(
        self,
        settings: Any,  # Of `VerticalGBDT`
        objective: Objective,
        labels: Array,
        rng: np.random.Generator,
        held: Flags,
    ) -> None:
        self.settings, self.n_steps = settings, settings.n_trees
        self.objective, self.labels = objective, labels
        self._held, self._rng = held, rng
        self._weights = weights_of(settings.class_weights, objective, labels)
        known = rng.permutation(np.flatnonzero(~np.isnan(labels)))
        # Labelled samples that no tree is fitted to
        most = len(known) - 2 * settings.min_child
        self.held_out = validation_rows(known, labels, settings.validation_share, most)
        self._fit = np.setdiff1d(known, self.held_out)
        self.base = objective.start(labels[self._fit], self._weights[self._fit])
        fewest = 2 * settings.min_child
        self.ensembles = Ensembles.frequent(held, self._fit, settings.patterns, fewest)
        self._fitted = self.ensembles.fitted(held)
        self._predicting = self.ensembles.predicting(held)
        self.most_trees = settings.n_trees * int(self._routed().sum(axis=0).max())
        start = np.tile(self.base, len(self.ensembles))
        self.state: dict[str, Any] = {
            "nodes": np.zeros((0, len(_FIELDS))),
            "leaves": np.zeros((0, len(labels)), dtype=np.int32),
            "best": 0,
            "raw": np.tile(start[:, None], (1, len(labels))),
            "best_loss": float("inf"),
            "sorted": False,  # Whether levels are, and in which order
            "order": np.zeros(0, dtype=np.int64),
        }

    def iterate(self, i: int, grower: Grower, result: Result) -> bool:
        """Grow the trees of an iteration; return whether boosting ends."""
        width, raw = self.objective.width, np.array(self.state["raw"])
        g, h = self._gradients(raw)
        inside = np.repeat(self._fitted & self._sample(), width, axis=0)
        first = i * len(raw)
        trees = grower.grow(g, h, inside, self._columns(grower), first, self._routed())
        for t, tree in enumerate(trees):
            if self.objective.name == "quantile":
                left, quantile = self.labels - raw[t], self.objective.parameter
                values = quantile_values(tree, left, inside[t], quantile)
            else:
                values = leaf_values(tree, g[t], h[t], inside[t], self.settings.l2)
            values *= self.settings.learning_rate
            raw[t] += self._keep(first + t, tree, values, h[t] * inside[t])
        self.state["raw"] = raw
        return self._judge(i, trees, result)

    def _gradients(self, raw: Array) -> tuple[Array, Array]:
        g, h, fit = np.zeros(raw.shape), np.zeros(raw.shape), self._fit
        width = self.objective.width
        for first in range(0, len(raw), width):  # lines of an ensemble, one for each class
            own = slice(first, first + width)
            derivatives = self.objective.gradients(self.labels[fit], raw[own, fit])
            g[own, fit], h[own, fit] = (self._weights[fit] * of_raw for of_raw in derivatives)
        return g, h

    def order_levels(self, rounds: LevelRounds) -> Indices:
        """Return slots of levels by their mean gradient before the first tree; see `ranks`."""
        g, h = self._gradients(np.asarray(self.state["raw"]))
        inside = np.isin(np.arange(len(self.labels)), self._fit)
        node = np.where(inside, 0, -1)[None]
        derivatives = Derivatives.of(g[0], h[0], inside, 0.0)
        known = level_of(node, 1, g[:1], [derivatives], np.array([0]))
        return rounds.ranks(node, known, derivatives, self.settings.min_child)

    def _loss(self, rows: Indices, raw: Array) -> float:
        return self.objective.loss(self.labels[rows], raw[:, rows], self._weights[rows])

    def _columns(self, grower: Grower) -> Bytes:
        """Return which columns each tree may use, (n_trees, n_columns) or (1, n_columns)."""
        n_columns = grower.slots.n_columns
        count = max(1, round(self.settings.colsample * n_columns))
        chosen = np.ones(n_columns, dtype=np.uint8)
        if count < n_columns:
            chosen[self._rng.permutation(n_columns)[count:]] = 0
        own = [len(layout.n_bins) for layout in grower.slots.ordered]
        usable = chosen * np.repeat(self.ensembles.parties, own, axis=1).astype(np.uint8)
        return usable if len(usable) == 1 else np.repeat(usable, self.objective.width, axis=0)

    def _routed(self) -> Flags:
        """Return which samples go down each tree: those it is fitted to, and those it predicts."""
        known = np.zeros(len(self.labels), dtype=bool)
        known[self._fit] = True
        numbers = np.arange(len(self.ensembles))[:, None]
        routed = (self._fitted & known) | (self._predicting == numbers)
        return np.repeat(routed, self.objective.width, axis=0)

    def _sample(self) -> Flags:
        """Return which samples an iteration's trees are fitted to."""
        inside = np.zeros(len(self.labels), dtype=bool)
        rows = self._fit
        if self.settings.subsample < 1.0:
            count = max(1, round(self.settings.subsample * len(rows)))
            rows = self._rng.permutation(rows)[:count]
        inside[rows] = True
        return inside

    def _judge(self, i: int, trees: list[Tree], result: Result) -> bool:
        """Note how good predictions are; return whether boosting ends."""
        n_samples = len(self.labels)
        by_ensemble = np.asarray(self.state["raw"]).reshape(len(self.ensembles), -1, n_samples)
        raw = by_ensemble[self._predicting, :, np.arange(n_samples)].T
        entry = {
            "iteration": i + 1,
            "train_loss": self._loss(self._fit, raw),
            "splits": sum(node.left >= 0 for tree in trees for node in tree),
        }
        if len(self.held_out):
            entry["validation_loss"] = self._loss(self.held_out, raw)
            if entry["validation_loss"] < self.state["best_loss"]:
                self.state["best"] = i + 1
                self.state["best_loss"] = entry["validation_loss"]
        else:
            self.state["best"] = i + 1
        result.history.append(entry)
        stale = i + 1 - int(self.state["best"]) >= self.settings.early_stopping
        return stale or not entry["splits"]

    def _keep(self, number: int, tree: Tree, values: Array, h: Array) -> Array:
        """Write a tree down; return what it adds to each sample's raw prediction."""
        first = len(self.state["nodes"])
        table = np.zeros((len(tree), len(_FIELDS)))
        leaf = np.full(len(self.labels), LEAF, dtype=np.int32)
        for i, node in enumerate(tree):
            below = (first + node.left, first + node.right) if node.left >= 0 else (LEAF, LEAF)
            party = node.party if node.left >= 0 else LEAF
            table[i] = (
                number, i, party, *below, node.missing_left, values[i], node.gain,
                h[node.rows].sum(), node.slot, node.n_fit,
            )  # fmt: skip
            if node.left < 0:
                leaf[node.rows] = first + i
        self.state["nodes"] = np.concatenate([self.state["nodes"], table])
        self.state["leaves"] = np.concatenate([self.state["leaves"], leaf[None]])
        return np.where(leaf >= 0, values[np.maximum(leaf - first, 0)], 0.0)

    def model(self, name: str, parties: list[str]) -> TreesModel:
        """Return the server's part of the trees that are kept."""
        n_trees = int(self.state["best"]) * self.objective.width * len(self.ensembles)
        nodes = np.asarray(self.state["nodes"])
        nodes = nodes[nodes[:, 0] < n_trees]
        column = dict(zip(_FIELDS, nodes.T, strict=True))
        whole = {key: column[key].astype(np.int32) for key in _FIELDS[:5]}
        return TreesModel(
            name=name,
            parties=parties,
            objective=self.objective.name,
            parameter=self.objective.parameter,
            base=self.base,
            **whole,
            missing_left=column["missing_left"].astype(np.uint8),
            value=column["value"].copy(),
            gain=column["gain"].copy(),
            cover=column["cover"].copy(),
            roots=np.flatnonzero(whole["number"] == 0).astype(np.int32),
            ensembles=self.ensembles.parties.astype(np.uint8),
        )

    def dependence(self, model: TreesModel, slots: Slots) -> dict[str, dict[str, Array]]:
        """Return what each party is told of how raw predictions depend on its columns."""
        at, rows = np.asarray(self.state["nodes"])[: len(model.tree), -2:].T
        layouts = [slots.layouts[name] for name in slots.names]
        curves = partial_dependence(model, at.astype(np.int64), rows, layouts)
        # A leaf may be one label, and two runs' leaves may differ by one: not to all digits, and
        # to steps that no party's table makes finer. Log odds and logarithms have fixed ones.
        linear = self.objective.name in ("regression", "quantile")
        spread = float(np.std(self.labels[self._fit])) if linear else 1.0
        step = 2.0 ** np.floor(np.log2((spread or 1.0) / _CURVE))
        told = [np.rint(own / step) * step for own in curves]
        return {name: {"dependence": own} for name, own in zip(slots.names, told, strict=True)}

    def leaves(self, model: TreesModel) -> Integers32:
        """Return samples' leaves, (n_trees, n_samples): lines; -1 in trees of other ensembles."""
        leaves = np.asarray(self.state["leaves"])[: len(model.roots)]
        return np.where(model.starts(self._held) >= 0, leaves, LEAF).astype(np.int32)

    def metrics(self, raw: Array) -> dict[str, float]:
        """Return figures of merit on samples that are held out, and on those of the fit."""
        from sklearn.metrics import roc_auc_score  # parties import this module, too

        found = {"iterations": float(self.state["best"])}
        for prefix, rows in (("validation_", self.held_out), ("train_", self._fit)):
            if len(rows):
                y, own = self.labels[rows], raw[:, rows]
                found[prefix + "loss"] = self._loss(rows, raw)
                if self.objective.name in ("binary", "share") and 0.0 < y.mean() < 1.0:
                    found[prefix + "auc"] = float(roc_auc_score(y, own[0]))
        return found


def validation_rows(known: Indices, labels: Array, share: float | None, most: int) -> Indices:
    """Return the labelled samples to hold out, (n_validation,), ascending; `most` of them at most.

    Shapes: known (n_labelled,): in random order; labels (n_samples,). In the order of labels, equal
    ones at random, every so-and-so-many-th: so classes keep their shares.
    """
    stated = min(_A_FIFTH * len(known), _MOST) if share is None else share * len(known)
    count = max(0, min(round(stated), most))
    order = known[np.argsort(labels[known], kind="stable")]
    return np.sort(order[((np.arange(count) + 0.5) * len(known) / max(count, 1)).astype(np.int64)])


class SlotRows:
    """Sees to it that the server has the masked rows of the slots that a run has come to.

    Levels are sorted once, before the first tree, from the rows of nominal columns alone. A run may
    be resumed, or go back to a snapshot, at any place: so what is here follows the state of
    `Boosting`.
    """

    def __init__(
        self, federation: Federation, rounds: LevelRounds, arguments: dict[str, Any], sorts: bool
    ) -> None:
        self._federation, self._rounds, self._arguments = federation, rounds, arguments
        self._slots, self._plain = rounds.slots, dict(rounds.slots.layouts)
        self._sorts = sorts and bool(rounds.slots.levels.any())
        self._asked_at = federation.course

    def send(self) -> None:
        """Ask for rows, as many rounds as they take."""
        if self._sorts and self._slots.layouts == self._plain:
            self._slots.only_levels()
            for own in self._arguments.values():
                own["only_levels"] = True
        fetch(self._federation, self._slots, self._arguments)

    def provide(self, course: Boosting) -> None:
        """Sort levels if that was not done, and ask again for rows that no journal kept."""
        are_sorted = any(own.are_sorted for own in self._slots.layouts.values())
        if self._sorts and not course.state["sorted"]:
            if are_sorted:  # back at a snapshot
                self._slots.layouts, self._slots.masked = dict(self._plain), {}
                for own in self._arguments.values():
                    own.pop("ranks")
            self._send_if_absent()
            course.state["order"] = course.order_levels(self._rounds)
            course.state["sorted"] = True
            self._use(course)
            self.send()
        elif self._sorts and not are_sorted:  # resumed
            self._use(course)
        self._send_if_absent()

    def _use(self, course: Boosting) -> None:
        ranks = self._slots.sort_levels(np.asarray(course.state["order"]), self._plain)
        for name, own in self._arguments.items():
            own["ranks"] = ranks[name]
            own.pop("only_levels", None)

    def _send_if_absent(self) -> None:
        if not self._slots.masked:
            with self._federation.asking_again(self._asked_at):
                self.send()
