"""What a run leaves: at each party its own splits, at the server the shape and values of trees."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Model
from flwr_vertical.arrays import Array
from flwr_vertical.tables import Table
from strategies.trees.binning import Bins, Codes
from strategies.trees.by_availability import Ensembles
from strategies.trees.objectives import Objective
from strategies.trees.routing import Splits

Numbers = npt.NDArray[np.int32]

LEAF = -1


@dataclass
class TreePart(Model):
    """A party's own splits."""

    strategy = "gbdt"

    model: str  # Which model they belong to: the name by which the server calls it
    columns: list[str]  # See `Bins`
    nominal: list[bool]  # See `Bins`
    edges: list[Array]  # See `Bins`
    levels: list[list[Any]]  # See `Bins`
    other: list[int]  # See `Bins`
    splits: Splits  # (n_splits, 5): see `RoutingSteps.splits`

    @classmethod
    def of(cls, model: str, bins: Bins, splits: Splits) -> "TreePart":
        """Write bins and splits down."""
        levels = [[plain_level(level) for level in own] for own in bins.levels]
        return cls(
            model, bins.columns, bins.nominal, bins.edges, levels, bins.other, np.array(splits)
        )

    @property
    def bins(self) -> Bins:
        """How columns become codes."""
        return Bins(self.columns, self.nominal, self.edges, self.levels, self.other)

    def named_splits(self) -> dict[str, Any]:
        """Return the columns of all splits by name, for the importance of columns."""
        names = [str(self.columns[column]) for column in self.splits[:, 2]]
        return {"splits": self.splits[:, :2], "columns": names}

    def codes(self, table: Table, party: str) -> Codes:
        """Return codes of new rows."""
        return self.bins.codes(table, party)


@dataclass
class TreesModel(Model):
    """The server's part: which party splits each node, what comes after, what leaves say.

    A node is a line of the arrays. Of columns and thresholds the server knows nothing.
    """

    strategy = "gbdt"

    name: str  # Names the model at the parties
    parties: list[str]  # Parties of the fit
    objective: str
    base: Array  # (width,): what the raw prediction of every sample begins with
    tree: Numbers  # (n_nodes,): its tree; tree t is of the class ``t % width``
    # (n_nodes,): within the tree, by which its owner knows the split; the root is 0
    number: Numbers
    party: Numbers  # (n_nodes,): whose split it is; -1 of a leaf
    left: Numbers  # (n_nodes,): lines of what comes after
    right: Numbers  # (n_nodes,): lines of what comes after
    missing_left: npt.NDArray[np.uint8]  # (n_nodes,): where rows go that the owner lacks
    value: Array  # (n_nodes,): of a leaf: what it adds to the raw prediction
    # gain, cover: (n_nodes,): by how much a split lowers the loss, to second order; sum of the
    # second derivatives
    gain: Array
    cover: Array
    roots: Numbers  # (n_trees,): lines of the roots
    # (n_ensembles, n_parties): see `Ensembles`: tree t is of the ensemble ``t // width %
    # n_ensembles``
    ensembles: npt.NDArray[np.uint8]

    @property
    def width(self) -> int:
        """Raw predictions of a sample."""
        return len(self.base)

    @property
    def loss(self) -> Objective:
        """What the trees were grown for."""
        return Objective(self.objective, self.width)

    @property
    def longest_way(self) -> int:
        """To how many splits a sample comes at most, in all trees."""
        depth = np.zeros(len(self.party), dtype=np.int64)
        deepest = np.zeros(len(self.roots), dtype=np.int64)
        for line in range(len(depth)):  # what comes after a node stands behind it
            if self.party[line] >= 0:
                below = [self.left[line], self.right[line]]
                depth[below] = depth[line] + 1
                tree = self.tree[line]
                deepest[tree] = max(deepest[tree], depth[line] + 1)
        ensemble = np.arange(len(deepest)) // self.width % len(self.ensembles)
        return int(np.bincount(ensemble, deepest).max(initial=0))

    def starts(self, held: npt.NDArray[np.bool_]) -> Numbers:
        """Return where samples start in each tree: at its root, or nowhere.

        Shapes: held (n_samples, n_parties): which parties hold each sample; returns (n_trees,
        n_samples): lines; -1 where the tree is of an ensemble that does not predict the sample.
        """
        ensembles = Ensembles(self.ensembles.astype(bool))
        of_tree = np.arange(len(self.roots)) // self.width % len(ensembles)
        own = of_tree[:, None] == ensembles.predicting(held)
        return np.where(own, self.roots[:, None], LEAF).astype(np.int32)

    def raw(self, leaves: npt.NDArray[np.integer]) -> Array:
        """Return raw predictions from the leaf of each sample in each tree.

        Shapes: leaves (n_trees, n_samples): lines of leaves, -1 in trees that do not predict the
        sample; returns (width, n_samples).
        """
        out = np.tile(self.base[:, None], (1, leaves.shape[1]))
        for t, own in enumerate(leaves):
            out[t % self.width] += np.where(own >= 0, self.value[own], 0.0)
        return out

    def importance(self) -> pd.DataFrame:
        """Return gain, cover and number of splits by party; index party."""
        rows = []
        for k, name in enumerate(self.parties):
            own = self.party == k
            rows.append(
                {
                    "party": name,
                    "splits": int(own.sum()),
                    "gain": float(self.gain[own].sum()),
                    "cover": float(self.cover[own].sum()),
                }
            )
        return pd.DataFrame(rows).set_index("party")

    def importance_by_column(self, told: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
        """Return gain, cover and number of splits by column; index (party, column)."""
        numbers = ["splits", "gain", "cover"]
        keys = ["party", "column"]
        rows = []
        for k, name in enumerate(self.parties):
            own = np.flatnonzero(self.party == k)
            line = {(int(self.tree[i]), int(self.number[i])): i for i in own}
            for (tree, number), column in zip(
                np.asarray(told[name]["splits"]).tolist(), told[name]["columns"], strict=True
            ):
                if (at := line.get((tree, number))) is not None:  # else boosting ended before
                    rows.append((name, column, 1, float(self.gain[at]), float(self.cover[at])))
        found = pd.DataFrame(rows, columns=[*keys, *numbers]).groupby(keys, sort=False).sum()
        return found.sort_values("gain", ascending=False, kind="stable")


def prediction_table(objective: Objective, raw: Array) -> pd.DataFrame:
    """Return predictions of samples.

    Shapes: raw (width, n_samples); returns (n_samples, ...): ``prediction``: the likeliest class,
    or the expectation; of classes also ``probability_<class>``.
    """
    mean = objective.mean(raw)
    if objective.name in ("binary", "share"):
        mean = np.concatenate([1.0 - mean, mean])
    if len(mean) == 1:
        return pd.DataFrame({"prediction": mean[0]})
    columns = {f"probability_{c}": row for c, row in enumerate(mean)}
    return pd.DataFrame({"prediction": mean.argmax(axis=0).astype(float), **columns})


def plain_level(level: Any) -> Any:
    """Return a level without a NumPy type."""
    return level.item() if hasattr(level, "item") else level
