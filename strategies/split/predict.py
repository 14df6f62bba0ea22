"""Predictions: one round for a block of samples, and what `predict` runs."""

from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from flwr_vertical import Federation, Result
from flwr_vertical.alignment import Alignment
from flwr_vertical.arrays import Indices
from flwr_vertical.predictions import Predictions
from flwr_vertical.results import Progress
from strategies.linear.problem import sample_index
from strategies.neural.hardware import device_of, to_tensor
from strategies.neural.training import compare
from strategies.split.model import SplitModel
from strategies.split.networks import Head
from strategies.split.party import SplitParty
from strategies.split.rounds import SplitRounds


class SplitPredictions(Predictions):
    """Predict with a model of Vanilla VFL, LASER-VFL, PlugVFL, FedHSSL or FinalNet.

    A missing block counts as zeros where embeddings are concatenated, as nothing where they are
    averaged. One round, and one for each block of samples, after greeting and alignment.
    """

    party = SplitParty
    exchanges_asked: ClassVar[tuple[str, ...]] = ("embeddings",)
    disclosure = (
        (
            "server",
            "by sample: the sum over the parties of their embeddings; of a sample that one party "
            "alone holds (and agreed to) that party's own",
        ),
        ("nobody else", "the discriminator, and so the predictions, which stay at the server"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have parties take up their parts, and predict all samples."""
        model: SplitModel = self.model
        rounds = SplitRounds(federation, alignment.mask)
        replies = federation.call("open_networks", {"model": model.name, "device": "auto"})
        rows = rounds.agreed(replies, result)
        head = model.discriminator().to(device_of("auto"))
        found = predict_rows(rounds, model, head, rows, progress)
        result.predictions = found.set_axis(sample_index(alignment, result.labels, rows))
        if federation.labels is not None:
            compare(np.asarray(federation.labels)[rows], result, model.classes)


def predict_rows(
    rounds: SplitRounds, model: SplitModel, head: Head, rows: Indices, progress: Progress
) -> pd.DataFrame:
    """Predict samples, by one round for each block of them; a line for each of `rows`."""
    tables, like = [], next(head.parameters()).detach()
    for first in range(0, len(rows), model.prediction_rows):
        sums, counts = rounds.embed(rows[first : first + model.prediction_rows])
        with torch.no_grad():
            own = (to_tensor(values[0], like) for values in (sums, counts))
            tables.append(table_of(head(*own).cpu(), model))
        progress.step(min(first + model.prediction_rows, len(rows)), len(rows))
    return pd.concat(tables, ignore_index=True)


def table_of(given: torch.Tensor, model: SplitModel) -> pd.DataFrame:
    """Return ``prediction``, and ``probability_<class>`` for each class.

    Shapes: given (n_rows, n_classes): what the discriminator says.
    """
    if not model.classes:
        return pd.DataFrame({"prediction": given.double().numpy() * model.unit + model.centre})
    columns = {"prediction": np.asarray(model.classes)[given.argmax(-1).numpy()]}
    probabilities = given.double().softmax(-1).numpy()
    for k, label in enumerate(model.classes):
        columns[f"probability_{label:g}"] = probabilities[:, k]
    return pd.DataFrame(columns)
