"""The loop of boosting: gradients, trees, predictions so far, and when to stop."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flwr_vertical import Result
from flwr_vertical.arrays import Array, Flags
from strategies.trees.by_availability import Ensembles
from strategies.trees.ensemble import Course
from strategies.trees.grower import Grower
from strategies.trees.objectives import Objective
from strategies.trees.tree import Tree, leaf_values

if TYPE_CHECKING:
    from strategies.trees.strategy import VerticalGBDT


class Boosting(Course):
    """What boosting has come to.

    Shapes: labels (n_samples,): NaN where a sample has none; held (n_samples, n_parties): which
    parties hold each sample.
    """

    def __init__(
        self,
        settings: "VerticalGBDT",
        objective: Objective,
        labels: Array,
        rng: np.random.Generator,
        held: Flags,
    ) -> None:
        super().__init__(settings.n_trees, objective, labels, settings.colsample, rng, held)
        self.settings = settings
        n_validation = round(settings.validation_share * len(self._fit))
        self._validation = np.sort(rng.permutation(self._fit)[:n_validation])
        self._fit = np.setdiff1d(self._fit, self._validation)
        self.base = objective.start(labels[self._fit])
        fewest = 2 * settings.min_child
        self.ensembles = Ensembles.frequent(held, self._fit, settings.patterns, fewest)
        self._fitted = self.ensembles.fitted(held)
        self._predicting = self.ensembles.predicting(held)
        self.most_trees = settings.n_trees * int(self._routed().sum(axis=0).max())
        start = np.tile(self.base, len(self.ensembles))
        self.state["raw"] = np.tile(start[:, None], (1, len(labels)))
        self.state["best_loss"] = float("inf")

    def iterate(self, i: int, grower: Grower, result: Result) -> bool:
        """Grow the trees of an iteration; return whether boosting ends."""
        width, raw = self.objective.width, np.array(self.state["raw"])
        g, h = np.zeros(raw.shape), np.zeros(raw.shape)
        fit = self._fit
        for own in self._by_ensemble():
            g[own, fit], h[own, fit] = self.objective.gradients(self.labels[fit], raw[own, fit])
        inside = np.repeat(self._fitted & self._sample(), width, axis=0)
        first = i * len(raw)
        trees = grower.grow(g, h, inside, self._columns(grower), first, self._routed())
        for t, tree in enumerate(trees):
            values = self.settings.learning_rate * leaf_values(
                tree, g[t], h[t], inside[t], self.settings.l2
            )
            raw[t] += self._keep(first + t, tree, values, h[t] * inside[t])
        self.state["raw"] = raw
        return self._judge(i, trees, result)

    def _by_ensemble(self) -> list[slice]:
        """Return the lines of each ensemble's raw predictions, one for each class."""
        width = self.objective.width
        return [slice(e * width, (e + 1) * width) for e in range(len(self.ensembles))]

    def _columns(self, grower: Grower) -> npt.NDArray[np.uint8]:
        """Return which slots each tree may use, shape (n_trees, n_slots) or (1, n_slots)."""
        allowed = np.repeat(self.ensembles.parties, grower.slots.widths, axis=1)
        usable = self._usable(grower) * allowed.astype(np.uint8)
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
            "train_loss": self.objective.loss(self.labels[self._fit], raw[:, self._fit]),
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
        return int(self.state["best"]) * self.objective.width * len(self.ensembles)
