"""The rounds of the methods as the server sees them: sums in, the rows that a party holds out."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flwr_vertical import Federation
from flwr_vertical.arrays import AnyArray, Flags, Indices
from strategies.neural.hardware import to_numpy, to_tensor
from strategies.neural.training import NeuralRounds
from strategies.split.methods import Tasks

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
