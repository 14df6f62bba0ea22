"""Networks: what a party has and sends, the server's head, and what a run leaves of both."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strategies.neural.images import ImageEncoder, initialise
from strategies.neural.model import NeuralModel, NeuralPart
from strategies.neural.networks import (
    ACTIVATIONS,
    apply,
    draw_weights,
    load_arrays,
    make_encoder,
    new_generator,
    perceptron,
)
from strategies.split.final import Fields, FinalHead, FirstMaps
from strategies.split.methods import SplitNetworks

STEM = {"cnn": 3, "resnet18": 5}
"""Parts of an image's encoder that are its bottom: a convolution with what follows it, and of
ResNet-18 the first two blocks (Table 4: "lower layers")."""


def _encoder(
    n_columns: int, networks: SplitNetworks, party: str, generator: torch.Generator
) -> nn.Module:
    sizes = networks.latent_dim, networks.width, networks.layers
    return make_encoder(n_columns, *sizes, networks, party, generator)


class TwoEncoders(nn.Module):
    """FedHSSL's: one trained across parties, one at the party, the mean of both (Table 4)."""

    def __init__(
        self,
        n_columns: int,
        networks: SplitNetworks,
        party: str,
        generator: torch.Generator,
        shared: torch.Generator,
    ) -> None:
        super().__init__()
        self.cross = _encoder(n_columns, networks, party, generator)
        if (image := networks.image_of(party)) is not None:
            local = ImageEncoder(
                image, networks.latent_dim, networks.networks, networks.image_channels
            )
            parts, stem = list(local.net), STEM[networks.networks]
            pixels = nn.Unflatten(1, (image.channels, image.height, image.width))
            self.bottom = nn.Sequential(pixels, *parts[:stem])
            self.top = nn.Sequential(*parts[stem:])
            initialise(self.bottom, generator)
            initialise(self.top, shared)
            return
        width, activation = networks.width, networks.activation
        first = perceptron(n_columns, width, width, 1, activation, generator)
        self.bottom = nn.Sequential(*first, ACTIVATIONS[activation]())
        self.top = perceptron(
            width, networks.latent_dim, width, networks.layers - 1, activation, shared
        )

    def local(self, x: Tensor) -> Tensor:
        """Return embeddings by the party's own encoder, shape (n_rows, latent_dim)."""
        embedding: Tensor = self.top(self.bottom(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings, shape (n_rows, latent_dim)."""
        embedding: Tensor = 0.5 * (self.cross(x) + self.local(x))
        return embedding


class Extractor(nn.Module):
    """A party's network: from its columns to what it sends."""

    def __init__(
        self, n_columns: int, networks: SplitNetworks, n_parties: int, seed: int, name: str
    ) -> None:
        super().__init__()
        generator = new_generator(seed, f"weights of {name}")
        d, width = networks.latent_dim, networks.width
        self._n_parties, self._mixed = n_parties, networks.mixed
        self.encoder: nn.Module
        self.layer: nn.Module
        if networks.fusion == "final":
            self.encoder = Fields(n_columns, d, generator)
            self.layer = FirstMaps(n_columns, d, width, n_parties, generator)
            return
        if networks.hybrid:
            shared = new_generator(seed, "weights that parties share")
            self.encoder = TwoEncoders(n_columns, networks, name, generator, shared)
        else:
            self.encoder = _encoder(n_columns, networks, name, generator)
        self.layer = nn.Identity()
        if networks.fusion == "concat":
            # As the columns of one layer on the concatenation of all parties' embeddings.
            self.layer = nn.Linear(d, width, bias=False)
            limit = 1.0 / math.sqrt(n_parties * d)
            nn.init.uniform_(self.layer.weight, -limit, limit, generator=generator)

    def draw_own(self, key: bytes) -> None:
        """Draw all initial weights anew that parties do not share; see `draw_weights`."""
        own: list[nn.Module] = [self.encoder, self.layer]
        if isinstance(self.encoder, TwoEncoders):
            own = [self.encoder.cross, self.encoder.bottom, self.layer]
        draw_weights(nn.ModuleList(own), key)
        if isinstance(self.encoder, Fields):
            self.encoder.open_gates()
        with torch.no_grad():
            for part in self.layer.modules():
                if isinstance(part, nn.Linear):
                    part.weight.div_(math.sqrt(self._n_parties))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the party sends of rows that it holds, shape (n_rows, sent)."""
        sent: Tensor = self.layer(apply(self.encoder, x, self._mixed))
        return sent


class SumHead(nn.Module):
    """The server's network: from the sum of what parties send to classes, or to a number."""

    def __init__(
        self, networks: SplitNetworks, n_classes: int | None, n_parties: int, seed: int
    ) -> None:
        super().__init__()
        self.n_classes, self.fusion = n_classes, networks.fusion
        generator = new_generator(seed, "weights of the discriminator")
        n_out, width, layers = n_classes or 1, networks.width, networks.head_layers
        how = networks.activation, generator
        self.bias: nn.Parameter | None = None
        if networks.fusion == "mean":
            self.net = perceptron(networks.latent_dim, n_out, width, layers, *how)
            return
        limit = 1.0 / math.sqrt(n_parties * networks.latent_dim)
        self.bias = nn.Parameter(torch.empty(width).uniform_(-limit, limit, generator=generator))
        self.net = nn.Sequential(
            ACTIVATIONS[networks.activation](), *perceptron(width, n_out, width, layers - 1, *how)
        )

    def forward(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return log odds of classes, or a standardised number.

        Shapes: sums (..., sent): over the parties whose embeddings enter; counts (...): how many
        these are; returns (..., n_classes).
        """
        fused = sums / counts.clamp(min=1)[..., None] if self.bias is None else sums + self.bias
        given: Tensor = self.net(fused)
        return given[..., 0] if self.n_classes is None else given

    def losses(self, sums: Tensor, counts: Tensor, y: Tensor) -> Tensor:
        """Return cross entropies, or half squared errors, shape (...).

        Shapes: y (n_rows,): of the last axis but one of `sums`: classes 0, 1, ... or standardised
        numbers.
        """
        given = self(sums, counts)
        if self.n_classes is None:
            halved: Tensor = 0.5 * (given - y).square()
            return halved
        chosen = y.expand(given.shape[:-1])[..., None]
        losses: Tensor = -given.log_softmax(-1).gather(-1, chosen)[..., 0]
        return losses


Head = SumHead | FinalHead
"""The server's network of a method."""


def make_head(networks: SplitNetworks, n_classes: int | None, n_parties: int, seed: int) -> Head:
    """Return the server's network; parameters as of `SumHead`."""
    if networks.fusion == "final":
        return FinalHead(networks, n_classes, n_parties, seed)
    return SumHead(networks, n_classes, n_parties, seed)


@dataclass
class SplitPart(NeuralPart):
    """A party's own extractor, and how its columns become what it sees."""

    strategy = "vanilla-vfl"  # or any other of these methods: what reads it again

    n_parties: int  # Of the fit

    def extractor(self, name: str) -> Extractor:
        """Make the extractor again, of the party of that name."""
        networks = SplitNetworks.from_text(self.networks)
        made = Extractor(len(self.sources), networks, self.n_parties, 0, name)
        return load_arrays(made, self.weights, self.precision)


@dataclass
class SplitModel(NeuralModel):
    """The server's discriminator; it has no party's network."""

    strategy = "vanilla-vfl"  # or any other of these methods: what reads it again

    def discriminator(self) -> Head:
        """Make the discriminator again."""
        networks = SplitNetworks.from_text(self.networks)
        made = make_head(networks, len(self.classes) or None, len(self.parties), 0)
        return load_arrays(made, self.head, self.precision)
