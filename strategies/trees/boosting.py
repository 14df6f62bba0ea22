"""The loop of boosting: gradients, trees, predictions so far, and when to stop."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from flwr_vertical import Result
from strategies.trees.growing import Grower, Tree, leaf_values
from strategies.trees.model import LEAF, TreesModel
from strategies.trees.objectives import Array, Objective

if TYPE_CHECKING:
    from strategies.trees.strategy import VerticalGBDT

Flags = npt.NDArray[np.bool_]

# Columns of the table of nodes.
_FIELDS = ("tree", "number", "party", "left", "right", "missing_left", "value", "gain", "cover")


class Boosting:
    """What boosting has come to.

    Parameters
    ----------
    settings : VerticalGBDT
    objective : Objective
    labels : numpy.ndarray of shape (n_samples,)
        NaN where a sample has none.
    rng : numpy.random.Generator
        Draws validation samples, samples and columns of iterations.

    Attributes
    ----------
    state : dict
        What changes: belongs into snapshots.
    """

    def __init__(
        self,
        settings: "VerticalGBDT",
        objective: Objective,
        labels: Array,
        rng: np.random.Generator,
    ) -> None:
        self.settings, self.objective, self.labels, self._rng = settings, objective, labels, rng
        known = np.flatnonzero(~np.isnan(labels))
        n_validation = round(settings.validation_share * len(known))
        self._validation = np.sort(rng.permutation(known)[:n_validation])
        self._fit = np.setdiff1d(known, self._validation)
        self.base = objective.start(labels[self._fit])
        self.state: dict[str, Any] = {
            "raw": np.tile(self.base[:, None], (1, len(labels))),
            "nodes": np.zeros((0, len(_FIELDS))),
            "leaves": np.zeros((0, len(labels)), dtype=np.int32),
            "best": 0,
            "best_loss": float("inf"),
        }

    def iterate(self, i: int, grower: Grower, result: Result) -> bool:
        """Grow the trees of an iteration; return whether boosting ends.

        Parameters
        ----------
        i : int
            Number of the iteration, from 0.
        grower : Grower
        result : Result
            Its history gets an entry.
        """
        width, raw = self.objective.width, np.array(self.state["raw"])
        g, h = np.zeros(raw.shape), np.zeros(raw.shape)
        g[:, self._fit], h[:, self._fit] = self.objective.gradients(
            self.labels[self._fit], raw[:, self._fit]
        )
        inside = np.tile(self._sample(), (width, 1))
        trees = grower.grow(g, h, inside, self._usable(grower), i * width)
        for c, tree in enumerate(trees):
            values = self.settings.learning_rate * leaf_values(
                tree, g[c], h[c], inside[c], self.settings.l2
            )
            raw[c] += self._keep(i * width + c, tree, values, h[c] * inside[c])
        self.state["raw"] = raw
        return self._judge(i, trees, result)

    def _sample(self) -> Flags:
        """Return which samples an iteration's trees are fitted to."""
        inside = np.zeros(len(self.labels), dtype=bool)
        rows = self._fit
        if self.settings.subsample < 1.0:
            count = max(1, round(self.settings.subsample * len(rows)))
            rows = self._rng.permutation(rows)[:count]
        inside[rows] = True
        return inside

    def _usable(self, grower: Grower) -> npt.NDArray[np.uint8]:
        """Return which slots are of columns that an iteration's trees may use."""
        columns = grower.slots.columns
        n_columns = int(columns[-1]) + 1
        count = max(1, round(self.settings.colsample * n_columns))
        chosen = np.ones(n_columns, dtype=np.uint8)
        if count < n_columns:
            chosen[self._rng.permutation(n_columns)[count:]] = 0
        return chosen[columns]

    def _keep(self, number: int, tree: Tree, values: Array, h: Array) -> Array:
        """Write a tree down; return what it adds to each sample's raw prediction."""
        first = len(self.state["nodes"])
        table = np.zeros((len(tree), len(_FIELDS)))
        leaf = np.zeros(len(self.labels), dtype=np.int32)
        for i, node in enumerate(tree):
            below = (first + node.left, first + node.right) if node.left >= 0 else (LEAF, LEAF)
            party = node.party if node.left >= 0 else LEAF
            table[i] = (
                number, i, party, *below, node.missing_left, values[i], node.gain,
                h[node.rows].sum(),
            )  # fmt: skip
            if node.left < 0:
                leaf[node.rows] = first + i
        self.state["nodes"] = np.concatenate([self.state["nodes"], table])
        self.state["leaves"] = np.concatenate([self.state["leaves"], leaf[None]])
        return values[leaf - first]

    def _judge(self, i: int, trees: list[Tree], result: Result) -> bool:
        """Note how good predictions are; return whether boosting ends."""
        raw = self.state["raw"]
        entry = {
            "iteration": i + 1,
            "loss": self.objective.loss(self.labels[self._fit], raw[:, self._fit]),
            "splits": sum(node.left >= 0 for tree in trees for node in tree),
        }
        if len(self._validation):
            rows = self._validation
            entry["validation_loss"] = self.objective.loss(self.labels[rows], raw[:, rows])
            if entry["validation_loss"] < self.state["best_loss"]:
                self.state["best"] = i + 1
                self.state["best_loss"] = entry["validation_loss"]
        else:
            self.state["best"] = i + 1
        result.history.append(entry)
        stale = i + 1 - int(self.state["best"]) >= self.settings.early_stopping
        return stale or not entry["splits"]

    # -- after the loop ----------------------------------------------------------------------

    def model(self, name: str, parties: list[str]) -> TreesModel:
        """Return the server's part of the trees that are kept."""
        n_trees = int(self.state["best"]) * self.objective.width
        nodes = np.asarray(self.state["nodes"])
        nodes = nodes[nodes[:, 0] < n_trees]
        column = dict(zip(_FIELDS, nodes.T, strict=True))
        whole = {key: column[key].astype(np.int32) for key in _FIELDS[:5]}
        return TreesModel(
            name=name,
            parties=parties,
            objective=self.objective.name,
            base=self.base,
            **whole,
            missing_left=column["missing_left"].astype(np.uint8),
            value=column["value"].copy(),
            gain=column["gain"].copy(),
            cover=column["cover"].copy(),
            roots=np.flatnonzero(whole["number"] == 0).astype(np.int32),
        )

    def raw_of_kept(self, model: TreesModel) -> Array:
        """Return raw predictions of all samples by the trees that are kept."""
        return model.raw(np.asarray(self.state["leaves"])[: len(model.roots)])

    def metrics(self, raw: Array, n_iterations: int) -> dict[str, float]:
        """Return figures of merit on samples that are fitted, and on those held out."""
        found = {"iterations": float(n_iterations)}
        for prefix, rows in (("", self._fit), ("validation_", self._validation)):
            if len(rows):
                y, own = self.labels[rows], raw[:, rows]
                found[prefix + "loss"] = self.objective.loss(y, own)
                if self.objective.name == "binary" and 0.0 < y.mean() < 1.0:
                    found[prefix + "auc"] = float(roc_auc_score(y, own[0]))
        return found
