"""The loop of boosting: gradients, trees, predictions so far, and when to stop."""

from typing import TYPE_CHECKING

import numpy as np

from flwr_vertical import Result
from strategies.trees.course import Course
from strategies.trees.growing import Grower
from strategies.trees.objectives import Array, Objective
from strategies.trees.tree import Flags, Tree, leaf_values

if TYPE_CHECKING:
    from strategies.trees.strategy import VerticalGBDT


class Boosting(Course):
    """What boosting has come to.

    Parameters
    ----------
    settings : VerticalGBDT
    objective : Objective
    labels : numpy.ndarray of shape (n_samples,)
        NaN where a sample has none.
    rng : numpy.random.Generator
        Draws validation samples, samples and columns of iterations.
    """

    def __init__(
        self,
        settings: "VerticalGBDT",
        objective: Objective,
        labels: Array,
        rng: np.random.Generator,
    ) -> None:
        n_trees = settings.n_trees * objective.width
        super().__init__(settings.n_trees, n_trees, objective, labels, settings.colsample, rng)
        self.settings = settings
        n_validation = round(settings.validation_share * len(self._fit))
        self._validation = np.sort(rng.permutation(self._fit)[:n_validation])
        self._fit = np.setdiff1d(self._fit, self._validation)
        self.base = objective.start(labels[self._fit])
        self.state["raw"] = np.tile(self.base[:, None], (1, len(labels)))
        self.state["best_loss"] = float("inf")

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

    @property
    def n_kept(self) -> int:
        """Trees of the model."""
        return int(self.state["best"]) * self.objective.width
