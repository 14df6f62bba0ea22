"""Networks for parties whose columns are the pixels of an image (Table 5).

The paper has a ResNet-18 encoder and a "transposed CNN" decoder, and says no more of either. Here:

- Normalisation is by groups of channels (Wu and He, 2018), within each image. Batch normalisation
  would need a least number of held rows, and would let a row's embedding depend on the others of
  its batch.
- ResNet-18 (He et al., 2016, Table 1) begins with a 3 x 3 convolution of stride 1 and no pooling
  for images of up to 64 pixels a side, as its authors have it for CIFAR-10; else as for ImageNet.
- ``cnn`` is a small network for processors without a GPU: convolutions of stride 2 down to 4 x 4
  pixels at most, twice as many channels with each, then a linear layer.
- The decoder of both is a linear layer to the smallest of these sizes, transposed convolutions up
  to the image, and a convolution that gives each pixel's mean and raw scale.

Weights are drawn uniformly within one over the root of the inputs, as PyTorch does by itself.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flwr_vertical.errors import ConfigError, DataError

NETWORKS = ("mlp", "cnn", "resnet18")
RESNET_CHANNELS = 64
LARGE = 64  # pixels a side, above which ResNet-18 begins as for ImageNet
SMALLEST = 4  # pixels a side at most, where convolutions end
GROUP = 8  # channels that are normalised together


@dataclass(frozen=True)
class ImageShape:
    """What an image has of channels, rows and columns of pixels."""

    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.channels * self.height * self.width

    def __str__(self) -> str:
        return f"{self.channels}x{self.height}x{self.width}"


def parse_shapes(text: str) -> dict[str, ImageShape]:
    """Read the shapes of parties' images."""
    found: dict[str, ImageShape] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        party, _, numbers = item.rpartition("=")
        sizes = [int(part) if part.strip().isdecimal() else 0 for part in numbers.split("x")]
        if len(sizes) not in (2, 3) or min(sizes) < 1 or party.strip() in found:
            raise ConfigError(
                f"image_shape: {item!r} is no shape; expected height and width such as '14x7', "
                "channels before them such as '3x32x32', and for some parties only "
                "'left=14x7, right=14x14', each party once"
            )
        found[party.strip()] = ImageShape(*([1] * (3 - len(sizes))), *sizes)
    return found


def check_size(image: ImageShape, n_columns: int, party: str) -> None:
    """Raise `DataError` if a party's columns are not the pixels of such an image."""
    if n_columns != image.size:
        raise DataError(
            f"party {party!r}: image_shape says {image} (channels x height x width), which is "
            f"{image.size} columns, but its table has {n_columns}; give its shape as "
            f"image_shape='{party}=...', or the columns of the image and no others"
        )


class ImageEncoder(nn.Module):
    """Numbers from images that come as rows of pixels: channel by channel, row by row."""

    def __init__(self, image: ImageShape, n_out: int, kind: str, channels: int) -> None:
        super().__init__()
        self.image = image
        if kind == "resnet18":
            self.net = _resnet18(image, n_out)
        else:
            sizes = _sizes(image)
            parts = _convolution(image.channels, channels)
            for k in range(len(sizes) - 1):
                parts += _convolution(channels << k, channels << (k + 1), stride=2)
            last = channels << (len(sizes) - 1)
            n_last = last * math.prod(sizes[-1])
            self.net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(n_last, n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers of images of shape (..., n_pixels); shape (..., n_out)."""
        image = self.image
        given: Tensor = self.net(x.reshape(-1, image.channels, image.height, image.width))
        return given.reshape(*x.shape[:-1], given.shape[-1])


class ImageDecoder(nn.Module):
    """Mean and raw scale of every pixel of an image: all means, then all scales."""

    def __init__(self, n_in: int, image: ImageShape, channels: int) -> None:
        super().__init__()
        sizes, self._n_out = _sizes(image), 2 * image.size
        first = channels << (len(sizes) - 1)
        height, width = sizes[-1]
        parts: list[nn.Module] = [
            nn.Linear(n_in, first * height * width),
            nn.Unflatten(1, (first, height, width)),
            _norm(first),
            nn.ReLU(),
        ]
        for k in range(len(sizes) - 1, 0, -1):
            more = _lacking(sizes[k], sizes[k - 1])
            parts += [
                nn.ConvTranspose2d(
                    channels << k, channels << (k - 1), 3, 2, 1, output_padding=more, bias=False
                ),
                _norm(channels << (k - 1)),
                nn.ReLU(),
            ]
        parts.append(nn.Conv2d(channels, 2 * image.channels, 3, padding=1))
        self.net = nn.Sequential(*parts)

    def forward(self, h: Tensor) -> Tensor:
        """Return the numbers of h of shape (..., n_in); shape (..., 2 * n_pixels)."""
        given: Tensor = self.net(h.reshape(-1, h.shape[-1]))
        return given.reshape(*h.shape[:-1], self._n_out)


def initialise(net: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of linear layers and convolutions from a generator."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            limit = 1.0 / math.sqrt(layer.weight[0].numel())
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -limit, limit, generator=generator)


class _Block(nn.Module):
    """Two convolutions, and what comes in beside them (He et al., 2016, Figure 2)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(n_in, n_out, stride),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            _norm(n_out),
        )
        self.past: nn.Module = nn.Identity()
        if stride > 1 or n_in != n_out:
            self.past = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), _norm(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.past(x))


def _resnet18(image: ImageShape, n_out: int) -> nn.Sequential:
    c = RESNET_CHANNELS
    if max(image.height, image.width) > LARGE:
        parts = [*_convolution(image.channels, c, 2, 7), nn.MaxPool2d(3, 2, 1)]
    else:
        parts = _convolution(image.channels, c)
    for k in range(4):
        before = c << max(0, k - 1)
        parts += [_Block(before, c << k, 1 if k == 0 else 2), _Block(c << k, c << k, 1)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * c, n_out))


def _convolution(n_in: int, n_out: int, stride: int = 1, size: int = 3) -> list[nn.Module]:
    convolution = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)
    return [convolution, _norm(n_out), nn.ReLU()]


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // math.gcd(channels, GROUP), channels)


def _lacking(below: tuple[int, int], above: tuple[int, int]) -> tuple[int, int]:
    """Return how many pixels doubling a size lacks: one where the size above was even."""
    return above[0] - (2 * below[0] - 1), above[1] - (2 * below[1] - 1)


def _sizes(image: ImageShape) -> list[tuple[int, int]]:
    """Return height and width before each convolution of stride 2, and after the last one."""
    sizes = [(image.height, image.width)]
    while max(sizes[-1]) > SMALLEST:
        height, width = sizes[-1]
        sizes.append(((height + 1) // 2, (width + 1) // 2))
    return sizes
