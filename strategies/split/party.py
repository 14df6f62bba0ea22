"""The party half of the methods: one message a step of training."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup, Summands, Uses, step
from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import DataError
from strategies.false_vfl.decoder_pass import scatter
from strategies.false_vfl.hardware import to_numpy, to_tensor
from strategies.false_vfl.party_data import OwnColumns
from strategies.false_vfl.party_networks import LONE_EMBEDDINGS
from strategies.split.party_networks import Extractors, KeptExtractor


class EmbeddingSteps(StepGroup):
    """Training with labels and predictions, party side."""

    party: Party

    @step
    def embed(
        self,
        batch: AnyArray,
        takes: AnyArray | None = None,
        gradient: AnyArray | None = None,
        mean: AnyArray | None = None,
        remember: bool = False,
        recall: bool = False,
    ) -> Summands:
        """Take the step that the last batch's gradient asks for, then embed a batch.

        Message: batch (n_rows,): aligned rows; takes (n_tasks, n_held): which sums each row that
        the party holds enters; by default one, which all enter; gradient (n_held of the last
        batch, sent): of the loss in what this party sent; mean (n_weights,): what the last round
        of FedHSSL's pretraining came to; remember, recall: whether to note the weights of the last
        message as the best ones, before anything else; whether to go back to those noted; returns
        ``embeddings``, shape (n_tasks, n_rows, sent): 0 for rows that the party lacks.
        """
        if takes is not None:
            # The difference of two such sums is one party's own embedding.
            self.party.check_exchange(LONE_EMBEDDINGS)
        self._catch_up(gradient, mean, remember=remember, recall=recall)
        extractors = self.other(Extractors)
        self.state["batch"] = np.asarray(batch)
        held = self.other(OwnColumns).held(batch)
        with torch.no_grad():
            own = extractors.get(changes=False)(held.x)
        if takes is None:
            return Summands({"embeddings": scatter(own, held.places, len(batch))[None]})
        flags = to_tensor(takes, own)
        told = [scatter(flag[:, None] * own, held.places, len(batch)) for flag in flags]
        return Summands({"embeddings": np.stack(told)})

    @step
    def keep(
        self,
        model: str,
        gradient: AnyArray | None = None,
        mean: AnyArray | None = None,
        remember: bool = False,
        recall: bool = False,
    ) -> dict[str, Any]:
        """Keep this party's part of the model on its own disk, for later predictions.

        Message: model: name of the model; gradient, mean, remember, recall: as of `embed`.
        """
        self._catch_up(gradient, mean, remember=remember, recall=recall)
        self.party.save_model(self.other(Extractors).part(model))
        return {}

    def _catch_up(
        self, gradient: AnyArray | None, mean: AnyArray | None, *, remember: bool, recall: bool
    ) -> None:
        """Do what rides with a message; parameters as of `embed`."""
        extractors = self.other(Extractors)
        if mean is not None:
            hybrid = extractors.hybrid()
            hybrid.shared = to_tensor(mean, hybrid.shared)
        if "hybrid" in self.party.live:
            self.party.live.drop("hybrid")
        if remember:
            kept = extractors.get(changes=False).state_dict()
            weights = {name: to_numpy(value).copy() for name, value in kept.items()}
            self.party.live.put("best", weights)
        if gradient is not None:
            self._learn(gradient)
        if recall:
            best = self.party.live.get("best", dict, changes=False)
            noted = {name: torch.from_numpy(np.array(value)) for name, value in best.items()}
            extractors.get(changes=True).load_state_dict(noted)

    def _learn(self, gradient: AnyArray) -> None:
        """Train the extractor on the last batch, by computing its forward pass again."""
        extractors = self.other(Extractors)
        held = self.other(OwnColumns).held(self.state["batch"])
        optimiser = extractors.optimiser()
        optimiser.zero_grad(set_to_none=True)
        own: Tensor = extractors.get(changes=True)(held.x)
        torch.autograd.backward([own], [to_tensor(gradient, own)])
        optimiser.step()
        if not all(torch.isfinite(p).all() for p in extractors.get(changes=True).parameters()):
            raise DataError(
                f"party {self.name!r}: its weights are not finite: the training has diverged. "
                "Lower learning_rate, and look for extreme values in its columns"
            )


class HybridSteps(StepGroup):
    """FedHSSL's pretraining, party side: one message a step across parties."""

    party: Party

    @step
    def project(
        self,
        batch: AnyArray | None = None,
        epoch: int = 0,
        total: AnyArray | None = None,
        mean: AnyArray | None = None,
        ends: bool = False,
    ) -> Summands:
        """Learn from the last batch, go through the own rows if it ends an epoch, project a batch.

        Message: batch (n_rows,): aligned rows that all parties hold; none in the last message;
        epoch: of the last batch; total (n_rows of the last batch, projected): sum over all parties
        of what they sent of it; mean (n_weights,): of what parties share, after the epoch before;
        ends: whether the last batch ended an epoch; returns ``projections``, shape (n_rows,
        projected), of length 1; with `total` the ``loss`` of the last batch, shape (1,); with
        `ends` the ``shared`` weights, shape (n_weights,).
        """
        extractors, own = self.other(Extractors), self.other(OwnColumns)
        hybrid = extractors.hybrid()
        told: dict[str, AnyArray] = {}
        if mean is not None:
            hybrid.shared = to_tensor(mean, hybrid.shared)
        if total is not None:
            x = own.held(self.state["batch"]).x
            given = to_tensor(total, x)
            loss = hybrid.learn_across(x, given, int(self.state["parties"]), epoch)
            told["loss"] = np.array([loss], dtype=np.asarray(total).dtype)
        if ends:
            hybrid.learn_within(epoch)
            told["shared"] = to_numpy(hybrid.shared)
        if batch is not None:
            self.state["batch"] = np.asarray(batch)
            told["projections"] = to_numpy(hybrid.project(own.held(batch).x))
        return Summands(told)


class SplitParty(Party):
    """A party of Vanilla VFL, LASER-VFL, PlugVFL, FedHSSL or FinalNet."""

    kept = Uses(KeptExtractor)
    columns = Uses(OwnColumns)
    extractors = Uses(Extractors)
    embedding = Uses(EmbeddingSteps)
    hybrid = Uses(HybridSteps)
