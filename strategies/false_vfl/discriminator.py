"""The second stage at the server: labels, the discriminator's training, tables of predictions."""

import copy
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from flwr_vertical.errors import DataError
from strategies.false_vfl.bounds import log_bound, normalised_weights
from strategies.false_vfl.hardware import device_of, to_numpy
from strategies.false_vfl.server_model import Discriminator

if TYPE_CHECKING:
    from strategies.false_vfl.strategy import FalseVFL

MAX_CLASSES = 1000


class Targets:
    """Labels as the discriminator has them.

    Shapes: known (n_samples,): which samples have one; y (n_samples,): numbers of classes, or
    standardised labels; anything where none is known.
    """

    def __init__(
        self,
        known: npt.NDArray[np.bool_],
        y: npt.NDArray[np.float64],
        classes: list[float],
        centre: float = 0.0,
        unit: float = 1.0,
    ) -> None:
        self.known, self.y, self.classes = known, y, classes
        self.centre, self.unit = centre, unit

    @classmethod
    def of(cls, labels: npt.NDArray[np.float64], task: str) -> "Targets":
        """Take labels, NaN where a sample has none."""
        known = ~np.isnan(labels)
        if not known.any():
            raise DataError("no sample has a label; expected some, NaN where there is none")
        own = labels[known]
        if not np.isfinite(own).all():
            raise DataError("a label is infinite; expected numbers, NaN where there is none")
        if task == "regression":
            unit = float(own.std())
            if unit == 0:
                raise DataError(f"all labels are {own[0]}; there is nothing to be predicted")
            centre = float(own.mean())
            return cls(known, (labels - centre) / unit, [], centre, unit)
        classes = np.unique(own)
        if len(classes) < 2:
            raise DataError(f"all labels are of class {classes[0]:g}; expected two or more classes")
        if len(classes) > MAX_CLASSES:
            raise DataError(
                f"the labels have {len(classes)} different values; for labels that are numbers "
                "set task='regression'"
            )
        numbers = np.searchsorted(classes, np.where(known, labels, classes[0]))
        return cls(known, numbers.astype(float), [float(c) for c in classes])


class HeadTraining:
    """The discriminator and its optimiser."""

    def __init__(self, strategy: "FalseVFL", targets: Targets, seed: int) -> None:
        self.targets = targets
        self._best: dict[str, Tensor] | None = None
        self._dtype, self._batch_size = strategy.dtype, strategy.batch_size
        self._device = device_of(strategy.device)
        n_classes = len(targets.classes) or None
        self.net = Discriminator(strategy.network_settings, n_classes, seed).to(
            self._device, self._dtype
        )
        self._optimiser = torch.optim.Adam(
            self.net.parameters(), lr=strategy.learning_rate, weight_decay=strategy.weight_decay
        )

    def epoch(
        self, h: Tensor, logs: Tensor, rows: npt.NDArray[np.int64], rng: np.random.Generator
    ) -> float:
        """Go once through the labelled samples; return the mean loss.

        Shapes: h (n_rows, n_draws, h_dim); logs (n_rows, n_draws): log weights of the draws,
        without the labels' part; rows (n_rows,): which samples they are.
        """
        y = self._labels(rows)
        total = 0.0
        order = torch.from_numpy(rng.permutation(len(rows)))
        for batch in torch.split(order, self._batch_size):
            self._optimiser.zero_grad(set_to_none=True)
            loss = -log_bound(logs[batch] + self.net.log_density(h[batch], y[batch])).mean()
            torch.autograd.backward([loss])
            self._optimiser.step()
            total += float(loss.detach()) * len(batch)
        return total / len(rows)

    def loss(self, h: Tensor, logs: Tensor, rows: npt.NDArray[np.int64]) -> float:
        """Return the mean loss of samples that are not trained on; parameters as of `epoch`."""
        with torch.no_grad():
            return -float(log_bound(logs + self.net.log_density(h, self._labels(rows))).mean())

    def remember(self) -> None:
        """Note the weights as the best ones so far."""
        self._best = copy.deepcopy(self.net.state_dict())

    def recall(self) -> None:
        """Go back to the best weights, if some were noted."""
        if self._best is not None:
            self.net.load_state_dict(self._best)

    def _labels(self, rows: npt.NDArray[np.int64]) -> Tensor:
        kind = torch.int64 if self.targets.classes else self._dtype
        return torch.from_numpy(self.targets.y[rows]).to(self._device, kind)


def prediction_table(
    net: Discriminator, h: Tensor, logs: Tensor, classes: list[float], centre: float, unit: float
) -> pd.DataFrame:
    """Return predictions of samples, a line each.

    Shapes: h (n_rows, n_draws, h_dim); logs (n_rows, n_draws): log weights of the draws.
    """
    with torch.no_grad():
        found = net.predict(h, normalised_weights(logs))
    if found.probabilities is None:
        assert found.deviation is not None
        value, deviation = (to_numpy(t.double()) for t in (found.value, found.deviation))
        return pd.DataFrame({"prediction": value * unit + centre, "std_error": deviation * unit})
    columns = {"prediction": np.asarray(classes)[to_numpy(found.value)]}
    probabilities = to_numpy(found.probabilities.double())
    for k, label in enumerate(classes):
        columns[f"probability_{label:g}"] = probabilities[:, k]
    return pd.DataFrame(columns)
