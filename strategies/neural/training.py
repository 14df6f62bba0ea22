"""The server's side: labels, which samples take part and validate, and when training ends."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Federation, Result
from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.errors import DataError
from flwr_vertical.tables.codes import level_text

MAX_CLASSES = 1000


@dataclass(frozen=True)
class LabelTargets:
    """Labels of all samples."""

    known: Flags  # (n_samples,): which samples have one
    # (n_samples,): numbers of classes, or standardised labels; anything where none is known
    y: Array
    classes: list[float]
    centre: float = 0.0
    unit: float = 1.0

    @classmethod
    def of(cls, labels: Array, task: str) -> "LabelTargets":
        """Take labels, NaN where a sample has none."""
        known = ~np.isnan(labels)
        if not known.any():
            raise DataError("no sample has a label; expected some, NaN where there is none")
        own = labels[known]
        if not np.isfinite(own).all():
            raise DataError("a label is infinite; expected numbers, NaN where there is none")
        if task == "regression":
            if np.ptp(own) == 0:
                raise DataError(f"all labels are {own[0]}; there is nothing to be predicted")
            centre, unit = float(own.mean()), float(own.std())
            return cls(known, (labels - centre) / unit, [], centre, unit)
        classes = np.unique(own)
        if len(classes) < 2:
            only = level_text(classes[0])
            raise DataError(f"all labels are of class {only}; expected two or more classes")
        fractions = (classes != np.rint(classes)).any()
        if len(classes) > (max(10, len(own) // 5) if fractions else MAX_CLASSES):
            raise DataError(
                f"the labels have {len(classes)} different values; for labels that are numbers "
                "set task='regression'"
            )
        numbers = np.searchsorted(classes, np.where(known, labels, classes[0]))
        return cls(known, numbers.astype(float), [float(c) for c in classes])

    @property
    def n_classes(self) -> int | None:
        """Number of classes; None of a regression."""
        return len(self.classes) or None

    def tensor(self, rows: Indices, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return labels of samples as losses take them; shape (n_rows,)."""
        kind = torch.int64 if self.classes else dtype
        return torch.from_numpy(self.y[rows]).to(device, kind)


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
    """Draw which rows train and which validate."""
    if not share:
        return rows, rows[:0]
    count = min(max(1, round(share * len(rows))), len(rows) - 1)
    shuffled = rng.permutation(rows)
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])


def compare(labels: Array, result: Result, classes: Collection[float]) -> None:
    """Say how far predictions are from the labels that are known.

    Shapes: labels (n_rows,): of the predicted samples, NaN where one is not known.
    """
    known = np.isfinite(labels)
    if not known.any() or result.predictions is None:
        return
    found = result.predictions["prediction"].to_numpy()[known]
    if classes:
        result.metrics["accuracy"] = float(np.mean(found == labels[known]))
        new = ~np.isin(labels[known], list(classes))
        if new.any():
            result.notes.append(
                f"{new.sum()} samples have labels {np.unique(labels[known][new]).tolist()[:10]}, "
                "of which the fit had none: their predictions are wrong in any case"
            )
    else:
        result.metrics["rmse"] = float(np.sqrt(np.mean((found - labels[known]) ** 2)))


class NeuralRounds:
    """What the rounds of all methods share; mask (n_samples, n_parties): what parties lack."""

    def __init__(self, federation: Federation, mask: Flags) -> None:
        self.federation = federation
        self.parties = list(federation.parties)
        self.held: Flags = ~mask
        self.counts: Indices = self.held.sum(axis=1)

    @property
    def n_samples(self) -> int:
        """Number of aligned samples."""
        return len(self.held)

    def usable(self, agree: Flags) -> Indices:
        """Return the samples that take part; `agree`: whether those of one party alone may."""
        lone = (self.counts == 1)[:, None] & self.held & ~agree
        return np.flatnonzero((self.counts > 0) & ~lone.any(axis=1))

    def agreed(self, replies: Mapping[str, Mapping[str, Any]], result: Result) -> Indices:
        """Return the samples that take part, after noting how many others there are."""
        agree = np.array([bool(replies[name]["lone"]) for name in self.parties])
        usable = self.usable(agree)
        if left_out := self.n_samples - len(usable):
            result.notes.append(
                f"{left_out} samples that one party alone holds were left out: a sum would not "
                "hide them, and that party does not agree to the exchange 'lone-embeddings'"
            )
        if not len(usable):
            raise DataError(
                "no sample takes part: each is held by one party alone, and none of these parties "
                "agrees to the exchange 'lone-embeddings'; align samples that several parties hold"
            )
        return usable
