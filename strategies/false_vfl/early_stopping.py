"""Early stopping: a stage ends when its validation has not become better for a while."""

import math
from typing import Any

import numpy as np

from flwr_vertical.arrays import Indices


class EarlyStop:
    """The best validation so far; belongs to the snapshots of a run."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self.best, self.best_epoch = math.inf, 0

    def is_better(self, epoch: int, loss: float) -> bool:
        """Note the loss of an epoch; return whether it is the least so far."""
        if not loss < self.best:
            return False
        self.best, self.best_epoch = loss, epoch
        return True

    def is_over(self, epoch: int) -> bool:
        """Whether to stop after an epoch."""
        return self.best_epoch > 0 and epoch - self.best_epoch >= self._patience

    def pack(self) -> dict[str, Any]:
        """Return what a snapshot needs."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def unpack(self, tree: dict[str, Any]) -> None:
        """Take up what a snapshot has."""
        self.best, self.best_epoch = tree["best"], tree["best_epoch"]


def split_off(rows: Indices, share: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Draw which rows train and which validate.

    Shapes: rows (n_rows,).
    """
    if not share:
        return rows, rows[:0]
    count = min(max(1, round(share * len(rows))), len(rows) - 1)
    shuffled = rng.permutation(rows)
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])
