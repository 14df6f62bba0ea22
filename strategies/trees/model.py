"""What a run leaves: at each party its own splits, at the server the shape and values of trees."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Model, Party
from flwr_vertical.arrays import Array, Bytes, Flags, Integers32
from strategies.trees.binning import Bins, Codes
from strategies.trees.objectives import Objective
from strategies.trees.routing import Splits


@dataclass(frozen=True)
class Ensembles:
    """Ensembles by which parties hold a sample: whose columns the trees of each may use.

    What one ensemble for all learns of a party's columns from samples that miss the others is
    diluted. So beside the first, of all columns and samples, each frequent pattern of held parties
    has one of their columns, fitted to all samples with a block of theirs. A sample is predicted by
    the ensemble of its own pattern, else by the first.
    """

    parties: Flags  # (n_ensembles, n_parties): the first has all parties

    @classmethod
    def frequent(
        cls, held: Flags, fit: npt.NDArray[np.intp], most: int, fewest: int
    ) -> "Ensembles":
        """Return one for all samples, and one for each of the most frequent other patterns.

        Shapes: held (n_samples, n_parties): which parties hold each sample; fit (n_fit,): samples
        that trees are fitted to.
        """
        every = np.ones((1, held.shape[1]), dtype=bool)
        patterns, counts = np.unique(held, axis=0, return_counts=True)
        known = held[fit]
        chosen = [
            pattern
            for pattern in patterns[np.argsort(-counts, kind="stable")]
            if pattern.any() and not pattern.all() and (known & pattern).any(axis=1).sum() >= fewest
        ]
        return cls(np.concatenate([every, *(pattern[None] for pattern in chosen[:most])]))

    def __len__(self) -> int:
        return len(self.parties)

    def fitted(self, held: Flags) -> Flags:
        """Return which samples have a block of its parties, (n_ensembles, n_samples)."""
        found: Flags = np.any(self.parties[:, None] & held, axis=2)
        found[:1] = True
        return found

    def predicting(self, held: Flags) -> npt.NDArray[np.intp]:
        """Return which ensemble predicts each sample, shape (n_samples,)."""
        out = np.zeros(len(held), dtype=np.intp)
        for number, pattern in enumerate(self.parties[1:], start=1):
            out[(held == pattern).all(axis=1)] = number
        return out


Numbers = Integers32

LEAF = -1


@dataclass
class BinnedPart(Model):
    """A party's part of a model of trees: how its columns become codes, see `Bins`."""

    model: str  # Which model it belongs to: the name by which the server calls it
    columns: list[str]
    nominal: list[bool]
    edges: list[Array]
    levels: list[list[Any]]
    other: list[int]
    ranks: dict[str, list[int]]

    @staticmethod
    def fields_of(bins: Bins) -> dict[str, Any]:
        """Return what is written down of the bins."""
        plain = [[v.item() if hasattr(v, "item") else v for v in own] for own in bins.levels]
        ranks = {str(column): own for column, own in bins.ranks.items()}
        return {**vars(bins), "levels": plain, "ranks": ranks}

    @property
    def bins(self) -> Bins:
        """How columns become codes."""
        ranks = {int(column): own for column, own in self.ranks.items()}
        return Bins(self.columns, self.nominal, self.edges, self.levels, self.other, ranks)

    def codes(self, party: Party) -> Codes:
        """Return the codes of a party's rows, in aligned order."""
        if "trees.codes" not in party.cache:
            party.cache["trees.codes"] = self.bins.aligned_codes(party)
        found: Codes = party.cache["trees.codes"]
        return found


@dataclass
class TreePart(BinnedPart):
    """A party's own splits."""

    strategy = "gbdt"

    splits: Splits  # (n_splits, 5): see `RoutingSteps.splits`

    def named_splits(self) -> dict[str, Any]:
        """Return the columns of all splits by name, for the importance of columns."""
        names = [str(self.columns[column]) for column in self.splits[:, 2]]
        return {"splits": self.splits[:, :2], "columns": names}


@dataclass
class TreesModel(Model):
    """The server's part, a node a line: who splits it, what comes after, what leaves say."""

    strategy = "gbdt"

    name: str  # Names the model at the parties
    parties: list[str]  # Parties of the fit
    objective: str
    parameter: float  # Of the objective, see `Objective`
    base: Array  # (width,): what the raw prediction of every sample begins with
    tree: Numbers  # (n_nodes,): its tree; tree t is of the class ``t % width``
    # (n_nodes,): within the tree, by which its owner knows the split; the root is 0
    number: Numbers
    party: Numbers  # (n_nodes,): whose split it is; -1 of a leaf
    left: Numbers  # (n_nodes,): lines of what comes after
    right: Numbers  # (n_nodes,): lines of what comes after
    missing_left: Bytes  # (n_nodes,): where rows go that the owner lacks
    value: Array  # (n_nodes,): of a leaf: what it adds to the raw prediction
    # gain, cover: (n_nodes,): by how much a split lowers the loss, to second order; sum of the
    # second derivatives
    gain: Array
    cover: Array
    roots: Numbers  # (n_trees,): lines of the roots
    # (n_ensembles, n_parties): see `Ensembles`: tree t is of the ensemble ``t // width %
    # n_ensembles``
    ensembles: Bytes

    @property
    def width(self) -> int:
        """Raw predictions of a sample."""
        return len(self.base)

    @property
    def loss(self) -> Objective:
        """What the trees were grown for."""
        return Objective(self.objective, self.width, self.parameter)

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

    def starts(self, held: Flags) -> Numbers:
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
            sums = float(self.gain[own].sum()), float(self.cover[own].sum())
            rows.append((name, int(own.sum()), *sums))
        names = ["party", "splits", "gain", "cover"]
        return pd.DataFrame(rows, columns=names).set_index("party")

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


def figures(loss: Objective, labels: Array, raw: Array, predicted: Array) -> dict[str, float]:
    """Return loss, and accuracy or root mean square error, over samples with a label.

    The loss is left out where a label is no class of the fit.
    """
    known = ~np.isnan(labels)
    if not known.any():
        return {}
    y, wrong = labels[known], predicted[known] - labels[known]
    classes = loss.name in ("binary", "multiclass", "share", "shares")
    known_classes = not classes or np.isin(y, np.arange(max(len(raw), 2))).all()
    found = {"loss": loss.loss(y, raw[:, known])} if known_classes else {}
    if classes:
        return found | {"accuracy": float(np.mean(wrong == 0))}
    return found | {"rmse": float(np.sqrt(np.mean(wrong**2)))}
