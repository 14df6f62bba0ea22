"""What a run leaves: at each party its own splits, at the server the shape and values of trees."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical import Model, Result, Strategy
from flwr_vertical.tables import Table
from strategies.trees.binning import Bins, Codes
from strategies.trees.objectives import Objective
from strategies.trees.routing import Splits

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int32]

LEAF = -1


@dataclass
class TreePart(Model):
    """A party's own splits.

    Parameters
    ----------
    model : str
        Which model they belong to: the name by which the server calls it.
    columns, nominal, edges, levels, other
        See `Bins`.
    splits : numpy.ndarray of shape (n_splits, 5), int32
        See `RoutingSteps.splits`.
    """

    strategy = "gbdt"

    model: str
    columns: list[str]
    nominal: list[bool]
    edges: list[Array]
    levels: list[list[Any]]
    other: list[int]
    splits: Splits

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

    def codes(self, table: Table, party: str) -> Codes:
        """Return codes of new rows."""
        return self.bins.codes(table, party)


@dataclass
class TreesModel(Model):
    """The server's part: which party splits each node, what comes after, what leaves say.

    A node is a line of the arrays. Of columns and thresholds the server knows nothing.

    Parameters
    ----------
    name : str
        Names the model at the parties.
    parties : list of str
        Parties of the fit.
    objective : str
    base : numpy.ndarray of shape (width,)
        What the raw prediction of every sample begins with.
    tree : numpy.ndarray of shape (n_nodes,), int32
        Its tree; tree t is of the class ``t % width``.
    number : numpy.ndarray of shape (n_nodes,), int32
        Within the tree, by which its owner knows the split; the root is 0.
    party : numpy.ndarray of shape (n_nodes,), int32
        Whose split it is; -1 of a leaf.
    left, right : numpy.ndarray of shape (n_nodes,), int32
        Lines of what comes after.
    missing_left : numpy.ndarray of shape (n_nodes,), uint8
        Where rows go that the owner lacks.
    value : numpy.ndarray of shape (n_nodes,)
        Of a leaf: what it adds to the raw prediction.
    gain, cover : numpy.ndarray of shape (n_nodes,)
        By how much a split lowers the loss, to second order; sum of the second derivatives.
    roots : numpy.ndarray of shape (n_trees,), int32
        Lines of the roots.
    """

    strategy = "gbdt"

    name: str
    parties: list[str]
    objective: str
    base: Array
    tree: Numbers
    number: Numbers
    party: Numbers
    left: Numbers
    right: Numbers
    missing_left: npt.NDArray[np.uint8]
    value: Array
    gain: Array
    cover: Array
    roots: Numbers

    @property
    def width(self) -> int:
        """Raw predictions of a sample."""
        return len(self.base)

    @property
    def loss(self) -> Objective:
        """What the trees were grown for."""
        return Objective(self.objective, self.width)

    def raw(self, leaves: npt.NDArray[np.integer]) -> Array:
        """Return raw predictions from the leaf of each sample in each tree.

        Parameters
        ----------
        leaves : numpy.ndarray of shape (n_trees, n_samples)
            Lines of leaves.

        Returns
        -------
        numpy.ndarray of shape (width, n_samples)
        """
        out = np.tile(self.base[:, None], (1, leaves.shape[1]))
        for t, own in enumerate(leaves):
            out[t % self.width] += self.value[own]
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

    def strategy_for(self, result: Result) -> Strategy:
        """Return what predicts new rows with this model."""
        from strategies.trees.predict import TreesPredict

        return TreesPredict(result)


def prediction_table(objective: Objective, raw: Array) -> pd.DataFrame:
    """Return predictions of samples.

    Parameters
    ----------
    objective : Objective
    raw : numpy.ndarray of shape (width, n_samples)

    Returns
    -------
    pandas.DataFrame of shape (n_samples, ...)
        ``prediction``: the likeliest class, or the expectation; of classes also
        ``probability_<class>``.
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
