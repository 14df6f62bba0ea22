"""Networks that parties and server have, how they begin, and how they are kept.

Initial weights of the server follow from a seed. PyTorch's generator on the CPU takes 32 bits of
one: whoever knows one sample, and what a network gave for it, could try them all. So a party's
weights come from a cryptographic key stream (`draw_weights`), of bytes that only the party knows.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from flwr_vertical.arrays import AnyArray
from flwr_vertical.privacy.keystream import KEY_BYTES, Keystream
from flwr_vertical.protocol.objects import pack_object, unpack_object
from strategies.neural import hardware
from strategies.neural.hardware import to_numpy
from strategies.neural.images import ImageEncoder, ImageShape, check_size, initialise, parse_shapes

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}

Weights = dict[str, AnyArray]
_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_N = TypeVar("_N", bound=nn.Module)


class AsText:
    """A record of settings that a message can carry."""

    def to_text(self) -> str:
        """Return all of it as text."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            if isinstance(value, list):  # JSON has no tuples
                values[name] = tuple(value)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class NetworkSizes(AsText):
    """Sizes of all networks of a method, as a message can carry them."""

    activation: str = "relu"  # A key of `ACTIVATIONS`
    # Of parties whose columns are an image's pixels; others have perceptrons
    networks: str = "mlp"
    image_shape: str = ""  # See `parse_shapes`
    image_channels: int = 16  # Of ``cnn`` and its decoder at the image's full size
    mixed: bool = False  # Whether matrix products are computed in bfloat16; see `apply`

    def image_of(self, party: str) -> ImageShape | None:
        """Return the shape of a party's image; None of one whose columns are a table."""
        if self.networks == "mlp":
            return None
        shapes = parse_shapes(self.image_shape)
        return shapes.get(party, shapes.get(""))


class Prediction(NamedTuple):
    """What is expected of labels."""

    value: Tensor  # (n_rows,): the most probable class, or the mean
    probabilities: Tensor | None  # (n_rows, n_classes): of a classification
    deviation: Tensor | None  # (n_rows,): standard deviation of a regression


class Packed(ABC):
    """Networks and optimisers that are written down by their names."""

    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """Return them all."""

    def pack(self) -> dict[str, Any]:
        """Return all weights and the state of the optimisers, as trees."""
        return {name: pack_object(name, part) for name, part in self._parts().items()}

    def unpack(self, tree: dict[str, Any]) -> None:
        """Take up what `pack` returned."""
        for name, part in self._parts().items():
            unpack_object(name, part, tree[name])


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


def make_encoder(
    n_columns: int,
    n_out: int,
    width: int,
    layers: int,
    sizes: NetworkSizes,
    party: str,
    generator: torch.Generator,
) -> nn.Module:
    """Make the encoder of a party's table or images, whose weights follow from a generator."""
    if (image := sizes.image_of(party)) is None:
        return perceptron(n_columns, n_out, width, layers, sizes.activation, generator)
    check_size(image, n_columns, party)
    made = ImageEncoder(image, n_out, sizes.networks, sizes.image_channels)
    initialise(made, generator)
    return made


def apply(net: nn.Module, x: Tensor, mixed: bool) -> Tensor:
    """Return what a network gives, in the type of its input."""
    given: Tensor
    if not mixed or not hardware.has_bfloat16(x.device.type):
        given = net(x)
        return given
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        given = net(x)
    return given.to(x.dtype)


def descend(
    optimiser: torch.optim.Optimizer,
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor] | None = None,
) -> None:
    """Take a step down losses, or against the gradients of a loss in some outputs."""
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(outputs, gradients)
    optimiser.step()


def draw_seed(seed: int, purpose: str) -> int:
    """Return another seed, below 2^63, that follows from one and what it is for."""
    digest = hashlib.blake2b(f"{seed}\0{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def new_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator for initial weights, other ones for each purpose."""
    return torch.Generator().manual_seed(draw_seed(seed, purpose))


def draw_weights(nets: nn.Module, key: bytes) -> None:
    """Draw the weights and biases of all layers anew, in their order.

    They are uniform within one over the root of a layer's inputs, as PyTorch's own. Layers that
    normalise keep their scales and shifts, which are constants.
    """
    stream = Keystream(key[:KEY_BYTES])
    for layer in nets.modules():
        if not isinstance(layer, _LAYERS):
            continue
        limit = 1.0 / math.sqrt(layer.weight[0].numel())
        for parameter in layer.parameters(recurse=False):
            words = stream.words(np.empty(parameter.numel(), dtype=np.uint64))
            # 24 bits: as many as a float32 has.
            uniform = (words >> np.uint64(40)) * 2.0**-23 - 1.0
            drawn = torch.from_numpy(limit * uniform).reshape(parameter.shape)
            with torch.no_grad():
                parameter.copy_(drawn.to(torch.float32))


def dtype_of(precision: str) -> torch.dtype:
    """Return what networks compute in, given the setting."""
    return torch.float64 if precision == "float64" else torch.float32


def precision_of(nets: nn.Module) -> str:
    """Return what networks compute in, as the setting has it."""
    return "float64" if next(nets.parameters()).dtype == torch.float64 else "float32"


def to_arrays(nets: nn.Module) -> Weights:
    """Return the weights of networks by name."""
    return {name: to_numpy(value).copy() for name, value in nets.state_dict().items()}


def from_arrays(weights: Weights) -> dict[str, Tensor]:
    """Return weights as `torch.nn.Module.load_state_dict` takes them."""
    return {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}


def load_arrays(nets: _N, weights: Weights, precision: str) -> _N:
    """Put weights into networks."""
    nets.to(dtype_of(precision)).load_state_dict(from_arrays(weights))
    return nets
