"""What a run of FALSE-VFL leaves: a part at each party, and the server's own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from flwr_vertical import Model
from flwr_vertical.arrays import AnyArray
from strategies.common.deep_part import DeepPart
from strategies.false_vfl.hardware import to_numpy
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.party_model import PartyNets
from strategies.false_vfl.server_model import Discriminator, ServerNets

if TYPE_CHECKING:
    from strategies.false_vfl.scales import ColumnScales

Weights = dict[str, AnyArray]
_N = TypeVar("_N", bound=nn.Module)


@dataclass
class FalseVFLPart(DeepPart):
    """A party's own networks, and how its columns become what they see."""

    strategy = "false-vfl"

    model: str  # Which model it belongs to: the name by which the server calls it
    networks: str  # `NetworkSettings` as text
    variant: str  # Of the fit
    precision: str  # Of the fit
    sources: list[str]  # Where the columns come from: see `column_sources`
    levels: list[str]  # Where the columns come from: see `column_sources`
    known_levels: dict[str, list[str]]  # Where the columns come from: see `column_sources`
    other: dict[str, list[str]]  # Where the columns come from: see `column_sources`
    centre: AnyArray  # (n_columns,): what the columns' values are less and in units of
    unit: AnyArray  # (n_columns,): what the columns' values are less and in units of
    weights: Weights  # Of `PartyNets`

    @classmethod
    def of(
        cls, model: str, settings: NetworkSettings, nets: PartyNets, scales: "ColumnScales"
    ) -> "FalseVFLPart":
        """Write networks and scales down."""
        return cls(
            model,
            settings.to_text(),
            "I" if nets.indicator is None else "II",
            "mixed" if settings.mixed else precision_of(nets),
            scales.sources,
            scales.levels,
            scales.known_levels,
            scales.other,
            scales.centre,
            scales.unit,
            to_arrays(nets),
        )

    def nets(self, name: str) -> PartyNets:
        """Make the networks again, of the party of that name."""
        settings = NetworkSettings.from_text(self.networks)
        nets = PartyNets(len(self.sources), settings, self.variant, 0, name)
        return load_arrays(nets, self.weights, self.precision)


@dataclass
class FalseVFLModel(Model):
    """The server's networks; it has no party's."""

    strategy = "false-vfl"

    name: str  # Names the model at the parties
    networks: str  # `NetworkSettings` as text
    variant: str  # Of the fit
    precision: str  # Of the fit
    parties: list[str]  # Parties of the fit
    classes: list[float]  # Labels of the classes; empty for a regression
    centre: float  # What standardised labels are in units of
    unit: float  # What standardised labels are in units of
    weights: Weights  # Of `ServerNets` and of `Discriminator`
    head: Weights  # Of `ServerNets` and of `Discriminator`
    prediction_samples: int  # See `FalseVFL`
    prediction_rows: int  # See `FalseVFL`

    @property
    def settings(self) -> NetworkSettings:
        """Sizes and bounds of the networks."""
        return NetworkSettings.from_text(self.networks)

    def nets(self) -> ServerNets:
        """Make the global networks again."""
        return load_arrays(ServerNets(self.settings, 0), self.weights, self.precision)

    def discriminator(self) -> Discriminator:
        """Make the discriminator again."""
        made = Discriminator(self.settings, len(self.classes) or None, 0)
        return load_arrays(made, self.head, self.precision)


def precision_of(nets: nn.Module) -> str:
    """Return what networks compute in, as the setting has it."""
    return "float64" if next(nets.parameters()).dtype == torch.float64 else "float32"


def to_arrays(nets: nn.Module) -> Weights:
    """Return the weights of networks by name."""
    return {name: to_numpy(value).copy() for name, value in nets.state_dict().items()}


def load_arrays(nets: _N, weights: Weights, precision: str) -> _N:
    """Put weights into networks."""
    nets.to(torch.float64 if precision == "float64" else torch.float32)
    state: dict[str, Tensor] = {
        name: torch.from_numpy(np.array(value)) for name, value in weights.items()
    }
    nets.load_state_dict(state)
    return nets
