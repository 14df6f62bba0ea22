"""A party's extractor in a run: consent, pretraining, how it is kept and taken up again."""

import json
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup, step
from flwr_vertical.policy.record import allows
from strategies.false_vfl.party_data import KeptPart, OwnColumns
from strategies.false_vfl.party_networks import EMBEDDINGS, LONE_EMBEDDINGS
from strategies.split.hybrid import HybridPretraining
from strategies.split.methods import Training
from strategies.split.model import SplitPart
from strategies.split.networks import Extractor, SplitNetworks, TwoEncoders
from strategies.split.simsiam import pretrain

WEIGHTS, PRETRAINING = "split weights", "split pretraining"
"""What a party draws its own random numbers for."""


class KeptExtractor(KeptPart):
    """The extractor that an earlier run left here."""

    kind = SplitPart


class Extractors(StepGroup):
    """The party's extractor, its optimiser, and its part of FedHSSL's pretraining."""

    party: Party

    @step
    def prepare(
        self,
        networks: str,
        training: str,
        n_parties: int,
        shared_seed: int,
        precision: str,
        encoding: str,
        device: str,
        subsets: bool,
    ) -> dict[str, Any]:
        """Agree to take part, note the settings of the run, and pretrain if that needs nobody else.

        Message: networks, training: `SplitNetworks` and `Training` as text; n_parties: of the run;
        shared_seed: initial weights follow from it of what parties average (FedHSSL); precision:
        what networks compute in; encoding: see `numeric_matrix`; device: where to compute;
        subsets: whether the server will ask for sums over some of the parties that hold a sample;
        returns ``lone``: whether samples that this party alone holds may take part.
        """
        agreed = self._consent()
        if subsets:
            self.party.check_exchange(LONE_EMBEDDINGS)
        state = self.state
        state["networks"], state["training"] = networks, training
        state["parties"], state["shared-seed"] = n_parties, shared_seed
        state["precision"], state["encoding"], state["device"] = precision, encoding, device
        if (image := self.networks.image_of(self.name)) is not None:
            state["image-channels"] = image.channels
        extractor = self.get(changes=True)  # says now whether the table can be used
        settings = self.training
        if settings.pretrain == "simsiam" and not self.networks.hybrid:
            rows = self._rows()
            pretrain(extractor.encoder, rows, self.networks, settings, self._own_seed(), self.name)
        return agreed

    @step
    def open_networks(self, model: str, device: str) -> dict[str, Any]:
        """Take up what an earlier run left here, to predict with it.

        Message: model: name of the model; device: where to compute; returns as of `prepare`.
        """
        agreed = self._consent()
        self.state["model"], self.state["device"] = model, device
        part = self.other(KeptPart).part
        assert isinstance(part, SplitPart)
        self.state["precision"] = part.precision
        self.get(changes=True)
        return agreed

    def _consent(self) -> dict[str, Any]:
        """Refuse unless the node agrees to embeddings; say whether it does to lone ones.

        However often a row is encoded, it tells no more than it holds: that is what the ledger has.
        """
        what = "sums by sample of its embeddings"
        self.party.open_exchange(EMBEDDINGS, what)
        return {"lone": allows(self.party.policy.exchanges, LONE_EMBEDDINGS)}

    # -- for steps ---------------------------------------------------------------------------

    def part(self, model: str) -> SplitPart:
        """Return what the party keeps of a model of that name."""
        scales, n_parties = self.other(OwnColumns).scales, int(self.state["parties"])
        return SplitPart.of(model, self.networks, n_parties, self.get(changes=False), scales)

    @property
    def networks(self) -> SplitNetworks:
        """Sizes of the run."""
        return SplitNetworks.from_text(str(self.state["networks"]))

    @property
    def training(self) -> Training:
        """Settings of the run."""
        return Training(**json.loads(str(self.state["training"])))

    def get(self, *, changes: bool) -> Extractor:
        """Return the extractor; `changes` says whether the step trains it."""
        found: Extractor = self.party.live.get("extractor", self._new, changes=changes)
        return found

    def optimiser(self) -> torch.optim.Adam:
        """Return the optimiser of training with labels."""
        found: torch.optim.Adam = self.party.live.get("optimiser", self._new_optimiser)
        return found

    def hybrid(self) -> HybridPretraining:
        """Return FedHSSL's pretraining."""
        self.get(changes=True)  # what it trains
        found: HybridPretraining = self.party.live.get("hybrid", self._new_hybrid)
        return found

    def _rows(self) -> Tensor:
        """Return the rows that take part, shape (n_rows, n_columns)."""
        own = self.other(OwnColumns).everything
        return own[torch.from_numpy(self.party.positions >= 0).to(own.device)]

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
        return HybridPretraining(
            encoder, self._rows(), self.networks, self.training, *seeds, self.name
        )


def to_text(training: Training) -> str:
    """Return settings as text, which a message can carry."""
    return json.dumps(asdict(training))
