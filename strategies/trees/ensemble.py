"""What growing trees has come to: the table of nodes, the leaf of each sample."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags
from strategies.trees.by_availability import Ensembles
from strategies.trees.grower import Grower
from strategies.trees.model import LEAF, TreesModel
from strategies.trees.node_sums import Indices
from strategies.trees.objectives import Objective
from strategies.trees.tree import Tree

# Columns of the table of nodes.
_FIELDS = ("tree", "number", "party", "left", "right", "missing_left", "value", "gain", "cover")


class Course(ABC):
    """What trees are grown for, and those that there are.

    Shapes: labels (n_samples,): NaN where a sample has none; held (n_samples, n_parties): which
    parties hold each sample.
    """

    def __init__(
        self,
        n_steps: int,
        objective: Objective,
        labels: Array,
        colsample: float,
        rng: np.random.Generator,
        held: Flags,
    ) -> None:
        self.n_steps, self.objective, self.labels = n_steps, objective, labels
        self._held, self.ensembles = held, Ensembles.shared(held.shape[1])
        self.most_trees = 0
        self._colsample, self._rng = colsample, rng
        self._fit = np.flatnonzero(~np.isnan(labels))
        self._validation = self._fit[:0]
        self.base = np.zeros(objective.width)
        self.state: dict[str, Any] = {
            "nodes": np.zeros((0, len(_FIELDS))),
            "leaves": np.zeros((0, len(labels)), dtype=np.int32),
            "best": 0,
        }

    @abstractmethod
    def iterate(self, i: int, grower: Grower, result: Result) -> bool:
        """Grow the trees of an iteration; return whether no more follow."""

    def _usable(self, grower: Grower) -> npt.NDArray[np.uint8]:
        """Return which slots are of columns that an iteration's trees may use."""
        columns = grower.slots.columns
        n_columns = int(columns[-1]) + 1
        count = max(1, round(self._colsample * n_columns))
        chosen = np.ones(n_columns, dtype=np.uint8)
        if count < n_columns:
            chosen[self._rng.permutation(n_columns)[count:]] = 0
        return chosen[columns]

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
                h[node.rows].sum(),
            )  # fmt: skip
            if node.left < 0:
                leaf[node.rows] = first + i
        self.state["nodes"] = np.concatenate([self.state["nodes"], table])
        self.state["leaves"] = np.concatenate([self.state["leaves"], leaf[None]])
        return np.where(leaf >= 0, values[np.maximum(leaf - first, 0)], 0.0)

    def model(self, name: str, parties: list[str]) -> TreesModel:
        """Return the server's part of the trees that are kept."""
        n_trees = self.n_kept
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
            ensembles=self.ensembles.parties.astype(np.uint8),
        )

    def leaves(self, model: TreesModel) -> npt.NDArray[np.int32]:
        """Return the leaf of each sample in each tree of the ensemble that predicts it.

        Shapes: returns (n_trees, n_samples): lines; -1 in trees of other ensembles.
        """
        leaves = np.asarray(self.state["leaves"])[: len(model.roots)]
        return np.where(model.starts(self._held) >= 0, leaves, LEAF).astype(np.int32)

    @property
    def held_out(self) -> Indices:
        """Labelled samples that no tree is fitted to."""
        return self._validation

    @property
    @abstractmethod
    def n_kept(self) -> int:
        """Trees of the model."""

    def metrics(self, raw: Array) -> dict[str, float]:
        """Return figures of merit on samples that are held out, and on those of the fit."""
        found = {"iterations": float(self.state["best"])}
        for prefix, rows in (("validation_", self._validation), ("train_", self._fit)):
            if len(rows):
                y, own = self.labels[rows], raw[:, rows]
                found[prefix + "loss"] = self.objective.loss(y, own)
                if self.objective.name in ("binary", "share") and 0.0 < y.mean() < 1.0:
                    found[prefix + "auc"] = float(roc_auc_score(y, own[0]))
        return found
