"""What a run of FALSE-VFL leaves: a part at each party, and the server's own."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from strategies.false_vfl.networks import Discriminator, NetworkSettings, PartyNetworks, ServerNets
from strategies.false_vfl.posterior import normalised_weights
from strategies.neural.hardware import to_numpy
from strategies.neural.model import NeuralModel, NeuralPart
from strategies.neural.networks import Weights, load_arrays


@dataclass
class FalseVFLPart(NeuralPart):
    """A party's own networks, and how its columns become what they see."""

    strategy = "false-vfl"

    variant: str  # Of the fit

    def nets(self, name: str) -> PartyNetworks:
        """Make the networks again, of the party of that name."""
        settings = NetworkSettings.from_text(self.networks)
        nets = PartyNetworks(len(self.sources), settings, self.variant, 0, name)
        return load_arrays(nets, self.weights, self.precision)


@dataclass
class FalseVFLModel(NeuralModel):
    """The server's networks; it has no party's."""

    strategy = "false-vfl"

    variant: str  # Of the fit
    weights: Weights  # Of `ServerNets`
    prediction_samples: int  # See `FalseVFL`

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
