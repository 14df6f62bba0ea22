"""Encoders: from a party's columns, of a table or of an image, to an embedding."""

import torch
from torch import Tensor, nn

from strategies.false_vfl.images import ImageEncoder, ImageShape, check_size, initialise
from strategies.false_vfl.networks import ACTIVATIONS, perceptron
from strategies.split.sizes import SplitNetworks

STEM = {"cnn": 3, "resnet18": 5}
"""Parts of an image's encoder that are its bottom: a convolution with what follows it, and of
ResNet-18 the first two blocks (Table 4: "lower layers")."""


def make_encoder(
    n_columns: int, networks: SplitNetworks, party: str, generator: torch.Generator
) -> nn.Module:
    """Make an encoder whose initial weights follow from a generator."""
    if (image := networks.image_of(party)) is None:
        how = networks.width, networks.layers, networks.activation, generator
        return perceptron(n_columns, networks.latent_dim, *how)
    check_size(image, n_columns, party)
    kind, channels = networks.networks, networks.image_channels
    made = ImageEncoder(image, networks.latent_dim, kind, channels)
    initialise(made, generator)
    return made


class ImageBottom(nn.Module):
    """The first layers of an image's encoder."""

    def __init__(self, image: ImageShape, parts: list[nn.Module]) -> None:
        super().__init__()
        self.image, self.net = image, nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return what layers give of images of shape (n_rows, n_pixels)."""
        image = self.image
        given: Tensor = self.net(x.reshape(-1, image.channels, image.height, image.width))
        return given


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
        self.cross = make_encoder(n_columns, networks, party, generator)
        self.bottom: nn.Module
        self.top: nn.Module
        if (image := networks.image_of(party)) is not None:
            local = ImageEncoder(
                image, networks.latent_dim, networks.networks, networks.image_channels
            )
            parts, stem = list(local.net), STEM[networks.networks]
            self.bottom = ImageBottom(image, parts[:stem])
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
