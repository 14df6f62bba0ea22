"""Networks for tables and images, and the choices that the paper leaves open.

The paper says "simple multilayer perceptrons" for tables and names no width, depth, activation or
bound of a variance. `NetworkSettings` holds one choice of each; ``simulations/false_vfl/search.py``
compares others on a validation split.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from strategies.false_vfl import hardware
from strategies.false_vfl.density import row_log_density
from strategies.false_vfl.gaussian import draw_seed
from strategies.false_vfl.images import ImageShape, parse_shapes

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


@dataclass(frozen=True)
class NetworkSettings:
    """Sizes and bounds of all networks."""

    # h_dim, z_dim: Dimensions of the latent variables (Table 10: 128 and 64 for Isolet and HAPT)
    h_dim: int = 128
    z_dim: int = 64
    party_width: int = 128  # Units of a hidden layer at a party, and at the server
    global_width: int = 128  # Units of a hidden layer at a party, and at the server
    # party_layers, global_layers, head_layers, indicator_layers: Layers with weights: of a
    # party's encoder and decoder, of the global ones (Table 5: 3), of the discriminator (Table 5:
    # 2) and of a party's missing indicator (Table 5: 3)
    party_layers: int = 2
    global_layers: int = 3
    head_layers: int = 2
    indicator_layers: int = 3
    activation: str = "relu"  # A key of `ACTIVATIONS`
    # x_bounds, h_bounds, z_bounds: Smallest and largest logarithm of a standard deviation: of
    # columns given h (columns are standardised), of h (at a party's encoder and at the global
    # decoder), of z given h
    x_bounds: tuple[float, float] = (-2.0, 1.0)
    h_bounds: tuple[float, float] = (-4.0, 2.0)
    z_bounds: tuple[float, float] = (-4.0, 2.0)
    # Whether matrix products of the generative networks are computed in bfloat16; see `apply`
    mixed: bool = False
    # Of parties whose columns are an image's pixels; others have perceptrons
    networks: str = "mlp"
    image_shape: str = ""  # See `parse_shapes`
    image_channels: int = 16  # Of ``cnn`` and its decoder at the image's full size

    def image_of(self, party: str) -> ImageShape | None:
        """Return the shape of a party's image; None of one whose columns are a table."""
        if self.networks == "mlp":
            return None
        shapes = parse_shapes(self.image_shape)
        return shapes.get(party, shapes.get(""))

    def to_text(self) -> str:
        """Return all of it as text, which a message can carry."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "NetworkSettings":
        """Read what `to_text` wrote."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            if isinstance(value, list):  # JSON has no tuples
                values[name] = tuple(value)
        return cls(**values)


def bounded(raw: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Map any number between two bounds, smoothly, zero to zero.

    A hard clamp would stop the gradient at the bounds; this one only lets it fade.
    """
    lower, upper = bounds
    width = upper - lower
    return lower + width * torch.sigmoid(4.0 * raw / width + math.log(-lower / upper))


def unbounded(value: float, bounds: tuple[float, float]) -> float:
    """Return what `bounded` maps to a value."""
    lower, upper = bounds
    share = (value - lower) / (upper - lower)
    return (math.log(share / (1.0 - share)) - math.log(-lower / upper)) * (upper - lower) / 4.0


def perceptron(
    n_in: int, n_out: int, width: int, layers: int, activation: str, generator: torch.Generator
) -> nn.Sequential:
    """Make a multilayer perceptron whose weights follow from a generator."""
    sizes = [n_in, *[width] * (layers - 1), n_out]
    parts: list[nn.Module] = []
    for i in range(layers):
        linear = nn.Linear(sizes[i], sizes[i + 1])
        limit = 1.0 / math.sqrt(sizes[i])
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -limit, limit, generator=generator)
        parts.append(linear)
        if i < layers - 1:
            parts.append(ACTIVATIONS[activation]())
    return nn.Sequential(*parts)


def apply(net: nn.Module, x: Tensor, mixed: bool) -> Tensor:
    """Return what a network gives, in the type of its input."""
    given: Tensor
    if not mixed or not hardware.has_bfloat16(x.device.type):
        given = net(x)
        return given
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        given = net(x)
    return given.to(x.dtype)


class GaussianNet(nn.Module):
    """A network that gives mean and log standard deviation."""

    def __init__(self, net: nn.Module, bounds: tuple[float, float], mixed: bool = False) -> None:
        super().__init__()
        self.net = net
        self.bounds, self.mixed = bounds, mixed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each of half as many numbers as `net` gives."""
        mean, raw = apply(self.net, x, self.mixed).chunk(2, dim=-1)
        return mean, bounded(raw, self.bounds)

    def log_density(self, x: Tensor, of: Tensor, known: Tensor | None = None) -> Tensor:
        """Return the log density of rows of `of` given x; parameters as of `row_log_density`.

        Shapes: x (n_rows, n_draws, n_in): what the network sees; of (n_rows, n_draws or 1,
        n_columns); known (n_rows, n_columns).
        """
        return row_log_density(apply(self.net, x, self.mixed), of, self.bounds, known)


def new_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator for initial weights, other ones for each purpose."""
    return torch.Generator().manual_seed(draw_seed(seed, purpose))
