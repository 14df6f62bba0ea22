"""The rounds of the methods as the server sees them, and predictions: one for a block of rows."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from flwr_vertical import Alignment, Federation, Progress, Result
from flwr_vertical.arrays import AnyArray, Flags, Indices
from flwr_vertical.predictions import Predictions
from flwr_vertical.protocol.declaration import BITS, FACTS, Protocol, Repeat, Round
from strategies.linear.prediction.regressions import class_table
from strategies.linear.problem import sample_index
from strategies.neural.hardware import device_of, to_numpy, to_tensor
from strategies.neural.training import NeuralRounds, compare
from strategies.split.methods import Tasks
from strategies.split.networks import Head, SplitModel
from strategies.split.party import SplitParty

EMBEDDING_LIMIT, WEIGHT_LIMIT = 2.0**8, 2.0**6
"""What a party sends at most of an embedding, and of a weight that parties average."""


class SplitRounds(NeuralRounds):
    """Messages of a run, by what they are for."""

    def __init__(self, federation: Federation, mask: Flags) -> None:
        super().__init__(federation, mask)
        self.carried: dict[str, Any] = {}

    def embed(self, batch: Indices, tasks: Tasks | None = None) -> tuple[AnyArray, AnyArray]:
        """Have parties learn from the last batch, if there was one, and embed this one.

        Shapes: batch (n_rows,): aligned rows; returns (n_tasks, n_rows, sent); returns (n_tasks,
        n_rows): how many embeddings they are of.
        """
        held = self.held[batch]
        takes = held[None] if tasks is None else tasks.takes
        common, of_party = self._riding()
        for k, name in enumerate(self.parties):
            if len(takes) > 1 or (takes[0] != held).any():
                of_party[name]["takes"] = takes[:, held[:, k], k]
        total = self.federation.sum(
            "embed",
            {"batch": batch, **common},
            per_party=of_party,
            scale={"embeddings": EMBEDDING_LIMIT},
        )
        return total["embeddings"], takes.sum(axis=-1)

    def keep(self, model: str) -> None:
        """Have each party keep its part of a model, after it has learned from the last batch."""
        common, of_party = self._riding()
        self.federation.call("keep", {"model": model, **common}, per_party=of_party)

    def _riding(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Take out what rides with the next message: to all parties, and to each."""
        common: dict[str, Any] = {
            name: self.carried.pop(name)
            for name in ("mean", "remember", "recall")
            if name in self.carried
        }
        of_party: dict[str, dict[str, Any]] = {name: {} for name in self.parties}
        for name, own in of_party.items():
            if f"{name} gradient" in self.carried:
                own["gradient"] = self.carried.pop(f"{name} gradient")
        return common, of_party

    def carry(self, batch: Indices, takes: Flags, gradient: Tensor) -> None:
        """Keep gradients for the next `embed`: of each party, those of the rows it holds.

        Shapes: batch (n_rows,); takes (n_tasks, n_rows, n_parties): as of `Tasks`; gradient
        (n_tasks, n_rows, sent): of the loss in the sums.
        """
        for k, name in enumerate(self.parties):
            flags = to_tensor(takes[..., k, None], gradient)
            own = to_numpy((flags * gradient).sum(0))
            self.carried[f"{name} gradient"] = own[self.held[batch, k]]

    def project(self, **arguments: Any) -> Mapping[str, Any]:
        """Take a round of FedHSSL's pretraining; for arguments see `HybridSteps.project`."""
        given = {name: value for name, value in arguments.items() if value is not None}
        scale = {}
        if "batch" in given:
            scale["projections"] = 1.0
        if "total" in given:
            scale["loss"] = 1.0
        if "ends" in given:
            scale["shared"] = WEIGHT_LIMIT
        return self.federation.sum("project", given, scale=scale).values


class SplitPredictions(Predictions):
    """Predict with a model of Vanilla VFL, LASER-VFL, PlugVFL, FedHSSL or FinalNet.

    A missing block counts as zeros where embeddings are concatenated, as nothing where they are
    averaged. One round, and one for each block of samples, after greeting and alignment.
    """

    party = SplitParty
    protocol: ClassVar[Protocol] = Protocol(
        Round("open_networks", "whether rows that it alone holds take part", tells=(FACTS, BITS)),
        Repeat(
            Round("embed", "summed, embeddings of a block of rows", tells=BITS), at_most="n_samples"
        ),
    )
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
    """Return ``prediction``, and ``probability_<class>``, of what the discriminator says."""
    if not model.classes:
        return pd.DataFrame({"prediction": given.double().numpy() * model.unit + model.centre})
    return class_table(given.double().softmax(-1).numpy(), model.classes)
