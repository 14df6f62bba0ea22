"""The party half of the methods: consent, pretraining, and one message a step of training."""

from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup, Summands, Uses, step
from flwr_vertical.arrays import AnyArray, Flags, Numbers
from flwr_vertical.errors import DataError, ProtocolError
from flwr_vertical.protocol.arguments import OWN, Is, OneOf, Shape, Within, check_fits
from strategies.neural.hardware import to_numpy, to_tensor
from strategies.neural.networks import descend, from_arrays, to_arrays
from strategies.neural.party import (
    LONE_EMBEDDINGS,
    Batch,
    Device,
    KeptPart,
    ModelName,
    NetworkSteps,
    OwnColumns,
    OwnRows,
    Precision,
    Seed,
    Sizes,
    scatter,
)
from strategies.split.methods import SplitNetworks, TrainingSettings
from strategies.split.networks import Extractor, SplitPart, TwoEncoders
from strategies.split.pretraining import HybridPretraining, pretrain

WEIGHTS, PRETRAINING = "split weights", "split pretraining"
"""What a party draws its own random numbers for."""

Weights: TypeAlias = Annotated[Numbers, Shape(None)]
"""Weights that parties average, one after the other."""


class KeptExtractor(KeptPart):
    """The extractor that an earlier run left here."""

    kind = SplitPart


class Extractors(NetworkSteps):
    """The party's extractor, its optimiser, and its part of FedHSSL's pretraining."""

    opened = "sums by sample of its embeddings"
    sizes_type = SplitNetworks

    @step
    def prepare(
        self,
        networks: Sizes,
        training: Annotated[str, Is("training")],
        n_parties: Annotated[int, Is("n_parties")],
        shared_seed: Seed,
        precision: Precision,
        device: Device,
        subsets: Annotated[bool, Is("subsets")],
    ) -> dict[str, Any]:
        """Agree to take part, note the settings of the run, and pretrain if that needs nobody else.

        Message: networks, training: `SplitNetworks` and `TrainingSettings` as text; n_parties: of
        the run; shared_seed: initial weights follow from it of what parties average (FedHSSL);
        precision: what networks compute in; device: where to compute; subsets: whether the server
        will ask for sums over some of the parties that hold a sample; returns ``lone``: whether
        samples that this party alone holds may take part.
        """
        agreed = self._consent()
        if subsets:
            self.party.check_exchange(LONE_EMBEDDINGS)
        self._note(networks, precision, device)
        self.state["training"] = training
        self.state["parties"], self.state["shared-seed"] = n_parties, shared_seed
        extractor = self.get(changes=True)  # says now whether the table can be used
        settings = self.training
        if settings.pretrain == "simsiam" and not self.networks.hybrid:
            rows = self.other(OwnColumns).taking_part
            pretrain(extractor.encoder, rows, self.networks, settings, self._own_seed(), self.name)
        return agreed

    @step
    def open_networks(
        self, model: ModelName, device: Annotated[str, OneOf(("auto",))]
    ) -> dict[str, Any]:
        """Take up what an earlier run left here, to predict with it.

        Message: model: name of the model; device: where to compute; returns as of `prepare`.
        """
        agreed = self._consent()
        self._take_up(model, device)
        self.get(changes=True)
        return agreed

    def part(self, model: str) -> SplitPart:
        """Return what the party keeps of a model of that name."""
        of = self.networks, self.get(changes=False), self.other(OwnColumns).scales
        return SplitPart.of(model, *of, n_parties=int(self.state["parties"]))

    @property
    def networks(self) -> SplitNetworks:
        """Sizes of the run."""
        return SplitNetworks.from_text(str(self.state["networks"]))

    @property
    def training(self) -> TrainingSettings:
        """Settings of the run."""
        return TrainingSettings.from_text(str(self.state["training"]))

    def get(self, *, changes: bool) -> Extractor:
        """Return the extractor; `changes` says whether the step trains it."""
        return self.party.live.get("extractor", self._new, changes=changes)

    def optimiser(self) -> torch.optim.Adam:
        """Return the optimiser of training with labels."""
        return self.party.live.get("optimiser", self._new_optimiser)

    def hybrid(self) -> HybridPretraining:
        """Return FedHSSL's pretraining."""
        self.get(changes=True)  # what it trains
        return self.party.live.get("hybrid", self._new_hybrid)

    def _own_seed(self) -> int:
        return int.from_bytes(self.party.own_bytes(PRETRAINING)[:8], "little") >> 1

    def _new(self) -> Extractor:
        part, own = self.other(KeptPart).part, self.other(OwnColumns)
        if isinstance(part, SplitPart):
            return part.extractor(self.name).to(own.device)
        seed, n_parties = int(self.state["shared-seed"]), int(self.state["parties"])
        made = Extractor(own.n_columns, self.networks, n_parties, seed, self.name).to(own.dtype)
        made.draw_own(self.party.own_bytes(WEIGHTS))
        return made.to(own.device)

    def _new_optimiser(self) -> torch.optim.Adam:
        rate, decay = self.training.learning_rate, self.training.weight_decay
        return torch.optim.Adam(self.get(changes=True).parameters(), lr=rate, weight_decay=decay)

    def _new_hybrid(self) -> HybridPretraining:
        encoder = self.get(changes=True).encoder
        assert isinstance(encoder, TwoEncoders)
        seeds = int(self.state["shared-seed"]), self._own_seed()
        rows = self.other(OwnColumns).taking_part
        return HybridPretraining(encoder, rows, self.networks, self.training, *seeds, self.name)


class EmbeddingSteps(StepGroup):
    """Training with labels and predictions, party side."""

    party: Party

    @step
    def embed(
        self,
        batch: Batch,
        takes: Annotated[Flags | None, OWN, Shape(None, None)] = None,
        gradient: OwnRows | None = None,
        mean: Weights | None = None,
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
            if len(takes) > (n_parties := int(self.state.get("parties", 0))):
                raise ProtocolError(
                    f"party {self.name!r}: {len(takes)} sums of a sample are asked for, and the "
                    f"method takes {n_parties} in a run that trains, as many as there are parties"
                )
        self._catch_up(gradient, mean, remember=remember, recall=recall)
        extractors = self.other(Extractors)
        self.state["batch"] = np.asarray(batch)
        held = self.other(OwnColumns).held(batch)
        with torch.no_grad():
            own = extractors.get(changes=False)(held.x)
        if takes is None:
            return Summands({"embeddings": scatter(own, held.places, len(batch))[None]})
        check_fits(self.name, "takes", takes, Shape(None, len(own)))
        flags = to_tensor(takes, own)
        told = [scatter(flag[:, None] * own, held.places, len(batch)) for flag in flags]
        return Summands({"embeddings": np.stack(told)})

    @step
    def keep(
        self,
        model: ModelName,
        gradient: OwnRows | None = None,
        mean: Weights | None = None,
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
            self.party.live.put("best", to_arrays(extractors.get(changes=False)))
        if gradient is not None:
            self._learn(gradient)
        if recall:
            best = self.party.live.get("best", dict[str, Any], changes=False)
            extractors.get(changes=True).load_state_dict(from_arrays(best))

    def _learn(self, gradient: AnyArray) -> None:
        """Train the extractor on the last batch, by computing its forward pass again."""
        extractors = self.other(Extractors)
        held = self.other(OwnColumns).held(self.state["batch"])
        own: Tensor = extractors.get(changes=True)(held.x)
        check_fits(self.name, "gradient", gradient, Shape(*own.shape))
        descend(extractors.optimiser(), [own], [to_tensor(gradient, own)])
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
        batch: Batch | None = None,
        epoch: Annotated[int, Within(0, "pretrain_epochs - 1")] = 0,
        total: Annotated[Numbers | None, Shape(None, None)] = None,
        mean: Weights | None = None,
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
