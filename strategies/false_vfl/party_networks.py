"""A party's networks in a run: consent to it, how they begin, are kept, and taken up again."""

from typing import Any

import torch

from flwr_vertical import Party, StepGroup, step
from flwr_vertical.policy.record import allows
from strategies.false_vfl.gaussian import draw_normals
from strategies.false_vfl.hardware import precision_on
from strategies.false_vfl.model import FalseVFLPart
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.party_data import KeptPart, OwnColumns
from strategies.false_vfl.party_model import PartyNets
from strategies.false_vfl.weights import draw_weights

EMBEDDINGS, LONE_EMBEDDINGS = "embeddings", "lone-embeddings"
"""Exchanges to which a node must agree: sums of embeddings by sample, and of samples that it alone
holds, which such a sum does not hide."""

WEIGHTS, NOISE = "false-vfl weights", "false-vfl noise"
"""What a party draws its own random numbers for."""


class Networks(StepGroup):
    """The party's networks and their optimisers, made once in a run."""

    party: Party

    @step
    def prepare(
        self,
        networks: str,
        variant: str,
        seed: int,
        precision: str,
        encoding: str,
        learning_rate: float,
        weight_decay: float,
        n_draws: int,
        device: str,
    ) -> dict[str, Any]:
        """Agree to take part, and note the settings of the run.

        Message: networks: `NetworkSettings` as text; variant: see `PartyNets`; seed: what the
        numbers follow from that are checked; precision: what networks compute in; encoding: see
        `numeric_matrix`; learning_rate, weight_decay: adam's; n_draws: draws of h in a pretraining
        step; device: where to compute; returns ``lone``: whether samples that this party alone
        holds may take part. ``drawn``: the first of the numbers that seed and precision give,
        which must be the server's. ``precision``: what this node computes in, see `precision_on`.
        """
        agreed = self._consent()
        self.state["networks"], self.state["variant"] = networks, variant
        self.state["precision"], self.state["encoding"] = precision, encoding
        self.state["learning-rate"], self.state["weight-decay"] = learning_rate, weight_decay
        self.state["draws"], self.state["device"] = n_draws, device
        if (image := NetworkSettings.from_text(networks).image_of(self.name)) is not None:
            self.state["image-channels"] = image.channels
        self.get(changes=True)  # says now whether the table can be used
        return agreed | self._means(seed)

    @step
    def keep(self, model: str) -> dict[str, Any]:
        """Keep this party's part of the model on its own disk, for later predictions.

        Message: model: name of the model.
        """
        settings = NetworkSettings.from_text(str(self.state["networks"]))
        scales = self.other(OwnColumns).scales
        part = FalseVFLPart.of(model, settings, self.get(changes=False), scales)
        self.party.save_model(part)
        return {}

    @step
    def open_networks(self, model: str, seed: int, device: str) -> dict[str, Any]:
        """Take up what an earlier run left here, to predict with it.

        Message: model: name of the model; seed, device: as in `prepare`; returns as of `prepare`.
        """
        agreed = self._consent()
        self.state["model"] = model
        part = self.other(KeptPart).part
        assert isinstance(part, FalseVFLPart)
        self.state["precision"], self.state["variant"] = part.precision, part.variant
        self.state["device"] = device
        self.get(changes=True)
        return agreed | self._means(seed)

    def _consent(self) -> dict[str, Any]:
        """Refuse unless the node agrees to embeddings; say whether it does to lone ones.

        However often a row is encoded, it tells no more than it holds: that is what the ledger has.
        """
        what = "sums by sample of its embeddings, of likelihoods of its columns and of gradients"
        self.party.open_exchange(EMBEDDINGS, what)
        return {"lone": allows(self.party.policy.exchanges, LONE_EMBEDDINGS)}

    def _means(self, seed: int) -> dict[str, Any]:
        """Return what this node draws from a seed, and what it computes in."""
        own = self.other(OwnColumns)
        drawn = draw_normals(seed, "check", (8,), own.dtype).numpy()
        return {
            "drawn": drawn,
            "precision": precision_on(own.device, str(self.state["precision"])),
        }

    def get(self, *, changes: bool) -> PartyNets:
        """Return the networks; `changes` says whether the step trains them."""
        found: PartyNets = self.party.live.get("networks", self._new, changes=changes)
        return found

    def optimiser(self, part: str) -> torch.optim.Adam:
        """Return the optimiser of the encoder, or of the decoder and the missing indicator."""
        found: torch.optim.Adam = self.party.live.get(part, lambda: self._new_optimiser(part))
        return found

    @property
    def variant(self) -> str:
        """``"I"`` or ``"II"``."""
        return str(self.state["variant"])

    @property
    def n_draws(self) -> int:
        """Draws of h in a pretraining step."""
        return int(self.state["draws"])

    def _new(self) -> PartyNets:
        part = self.other(KeptPart).part
        own = self.other(OwnColumns)
        if isinstance(part, FalseVFLPart):
            return part.nets(self.name).to(own.device)
        settings = NetworkSettings.from_text(str(self.state["networks"]))
        nets = PartyNets(own.n_columns, settings, self.variant, 0, self.name)
        draw_weights(nets, self.party.own_bytes(WEIGHTS))
        return nets.to(own.device, own.dtype)

    def noise_seed(self, seed: int) -> int:
        """Return the seed of what variant II draws of blocks that the party lacks."""
        return int.from_bytes(self.party.own_bytes(NOISE, str(seed).encode()), "little")

    def _new_optimiser(self, part: str) -> torch.optim.Adam:
        nets = self.get(changes=True)
        parameters = list(nets.encoder.parameters())
        if part == "decoder":
            parameters = [*nets.decoder.parameters()]
            if nets.indicator is not None:
                parameters += nets.indicator.parameters()
        rate, decay = float(self.state["learning-rate"]), float(self.state["weight-decay"])
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
