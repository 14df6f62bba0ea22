"""Random forests over columns of several parties: the trees of a batch grow in the same rounds."""

from types import MappingProxyType
from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.forest.arbiter import ForestArbiter
from strategies.forest.disclosure import FOREST_DISCLOSURE
from strategies.forest.party import ForestParty
from strategies.forest.predict import ForestPredictions
from strategies.forest.server import grow_votes
from strategies.trees.objectives import Objective
from strategies.trees.train import labels_of


class VerticalForest(Strategy):
    """Average trees that are each fitted to samples drawn anew (Breiman, 2001).

    Each tree is fitted by least squares to the labels, or to 0 and 1 for each class: its leaves are
    means, so the forest's predictions are means and shares of classes. For two classes that is the
    Gini index. Trees do not build on each other, so the `batch` trees of a batch share the rounds
    of a level: 100 trees of depth 8 take 240 rounds where 100 boosted ones would take 2,400.

    The server deals shares of labels once, and gets the sum of all trees' votes for samples without
    a label. It knows neither splits nor the sides of rows: the parties tell each other these, and
    the arbiter tells the parties which splits are best. Predictions are on a grid, of 12 bits where
    the nodes' ``prediction-bits`` say no other, and need the arbiter and the first two parties.

    `Result.predictions` and `Result.predict` are as of `VerticalGBDT`; ``Result.model`` has splits
    and cover by party.

    Notes
    -----
    A node whose samples have one label is split all the same: that it is not would tell the
    parties. Its leaves predict the same.

    Columns are drawn for a batch, not for each split: the parties do not see which columns another
    one's split could choose from.
    """

    objective: str = setting(
        "classes", "What labels are: classes, or numbers.", choices=("classes", "regression")
    )
    n_trees: int = setting(100, "Trees, for each class where there are several.", at_least=1)
    batch: int = setting(10, "Trees that grow in the same rounds.", at_least=1)
    max_depth: int = setting(8, "Levels of splits.", at_least=1, at_most=12)
    n_bins: int = setting(
        32, "Bins of a column at most, beside that of missing cells.", at_least=2, at_most=254
    )
    min_child: int = setting(5, "The fewest distinct samples of a leaf.", at_least=1)
    bootstrap: bool = setting(True, "Draw samples with replacement; else each tree has all.")
    colsample: float = setting(
        0.5, "Share of all columns that the trees of a batch may use.", above=0, at_most=1
    )
    name: ClassVar[str] = "forest"
    removed = MappingProxyType(
        {
            "routing": "nothing in its place: the parties alone know the sides of rows (the server "
            "learns them in 'gbdt')",
            "histograms": "'gbdt' with histograms='open'",
            "importance": "'gbdt' with importance='columns'",
        }
    )
    party = ForestParty
    arbiter = ForestArbiter
    predictions = ForestPredictions
    needs_labels: ClassVar[bool] = True
    needs_parties: ClassVar[int] = 2
    demo = MappingProxyType(
        {"labels": "demo", "demo.missing-blocks": 0.3, "demo.missing-labels": 0.3}
    )
    disclosure = FOREST_DISCLOSURE

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter."""
        return "a forest, whose splits it compares"

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Grow trees, and predict samples without a label."""
        labels = labels_of(federation, self.min_child)
        objective = Objective.of_votes(self.objective == "classes", labels[~np.isnan(labels)])
        grow_votes(federation, alignment, result, progress, self, labels, objective)
