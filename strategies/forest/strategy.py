"""Random forests over columns of several parties: the trees of a batch grow in the same rounds."""

from types import MappingProxyType
from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import ConfigError
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.forest.arbiter import ForestArbiter
from strategies.forest.disclosure import FOREST_DISCLOSURE
from strategies.forest.party import ForestParty
from strategies.forest.server import grow_votes
from strategies.trees.ensemble import Course
from strategies.trees.grower import Grower
from strategies.trees.objectives import Objective
from strategies.trees.party import COLUMN_NAMES
from strategies.trees.secret_shares import HIDING, HISTOGRAMS
from strategies.trees.train import grow_model, labels_of
from strategies.trees.tree import Growth, leaf_values


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
    ``routing="server"`` tells the server all that `VerticalGBDT` does, and needs less: its exact
    predictions need any one party, and with ``histograms="open"`` it grows without an arbiter.

    `Result.predictions` and `Result.predict` are as of `VerticalGBDT`; ``Result.model`` has splits
    and cover by party.

    Notes
    -----
    With routing at the parties a node whose samples have one label is split all the same: that it
    is not would tell the parties. Its leaves predict the same.

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
    routing: str = setting(
        "parties",
        "Who knows which side of splits rows are on: the parties alone, or the server, too.",
        choices=("parties", "server"),
    )
    histograms: str = setting(
        "hidden",
        "With routing 'server': whether it sees sums of labels over bins, which each node must "
        "allow.",
        choices=("hidden", "open"),
    )
    importance: str = setting(
        "parties",
        "Whose importance `Result.importance` has: that of parties, or of columns by name, which "
        "each node must allow.",
        choices=("parties", "columns"),
    )

    name: ClassVar[str] = "forest"
    party = ForestParty
    arbiter = ForestArbiter
    needs_labels: ClassVar[bool] = True
    needs_parties: ClassVar[int] = 2
    demo = MappingProxyType(
        {"labels": "demo", "demo.missing-blocks": 0.3, "demo.missing-labels": 0.3}
    )
    disclosure = FOREST_DISCLOSURE

    @property
    def needs_arbiter(self) -> str | None:
        """What needs an arbiter."""
        if self.routing == "parties":
            return "routing 'parties'"
        return HIDING if self.histograms == "hidden" else None

    @property
    def exchanges_asked(self) -> tuple[str, ...]:
        """What every node must agree to."""
        named = (COLUMN_NAMES,) if self.importance == "columns" else ()
        return ((HISTOGRAMS,) if self.histograms == "open" else ()) + named

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Grow trees, and predict samples without a label."""
        if self.routing == "parties" and self.histograms == "open":
            raise ConfigError(
                "histograms='open' tells the server sums over the rows of nodes, and with "
                "routing='parties' it does not know nodes; set routing='server', too, or leave "
                "histograms='hidden'"
            )
        if self.routing == "parties" and self.importance == "columns":
            raise ConfigError(
                "importance='columns' names the columns of splits, which with routing='parties' "
                "the server does not know; set routing='server', too, or leave "
                "importance='parties'"
            )
        labels = labels_of(federation, self.min_child)
        objective = Objective.of_votes(self.objective == "classes", labels[~np.isnan(labels)])
        if self.routing == "parties":
            grow_votes(federation, alignment, result, progress, self, labels, objective)
            return
        grow_model(
            federation, alignment, result, progress,
            Bagging(self, objective, labels, federation.rng, ~alignment.mask),
            n_bins=self.n_bins,
            growth=Growth(self.max_depth, self.min_child, 0.0),
            hidden=self.histograms == "hidden",
            columns=self.importance == "columns",
        )  # fmt: skip


class Bagging(Course):
    """What a forest has come to.

    Shapes: labels (n_samples,): NaN where a sample has none; held (n_samples, n_parties): which
    parties hold each sample.
    """

    def __init__(
        self,
        settings: VerticalForest,
        objective: Objective,
        labels: Array,
        rng: np.random.Generator,
        held: Flags,
    ) -> None:
        batches = -(-settings.n_trees // settings.batch)
        super().__init__(batches, objective, labels, settings.colsample, rng, held)
        self.most_trees = settings.n_trees * objective.width
        self.settings = settings
        known = labels[self._fit]
        if objective.width > 1:
            self._targets = (known == np.arange(objective.width)[:, None]).astype(float)
        else:
            self._targets = known[None]
        self.base = self._targets.mean(axis=1)

    def iterate(self, i: int, grower: Grower, result: Result) -> bool:
        """Grow a batch of trees."""
        width, first = self.objective.width, i * self.settings.batch
        count = min(self.settings.batch, self.settings.n_trees - first)
        g = np.zeros((count * width, len(self.labels)))
        h = np.zeros(g.shape)
        for t in range(count):
            weight = self._draw()
            h[t * width : (t + 1) * width, self._fit] = weight
            residual = self.base[:, None] - self._targets
            g[t * width : (t + 1) * width, self._fit] = weight * residual
        inside = h > 0.0
        trees = grower.grow(g, h, inside, self._usable(grower), first * width)
        for t, tree in enumerate(trees):
            values = leaf_values(tree, g[t], h[t], inside[t], 0.0) / self.settings.n_trees
            self._keep(first * width + t, tree, values, h[t])
        self.state["best"] = first + count
        splits = sum(node.left >= 0 for tree in trees for node in tree)
        result.history.append({"trees": first + count, "splits": splits})
        return False

    def _draw(self) -> Array:
        """Return how often a tree has each sample."""
        n = len(self._fit)
        if not self.settings.bootstrap:
            return np.ones(n)
        return np.bincount(self._rng.integers(n, size=n), minlength=n).astype(float)

    @property
    def n_kept(self) -> int:
        """Trees of the model."""
        return int(self.state["best"]) * self.objective.width
