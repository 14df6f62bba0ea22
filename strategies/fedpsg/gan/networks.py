"""The networks: a generator and a bottom discriminator at each party, a top one at the server.

Liu, He, Tan et al., Section 3.3 (2) and (3). Discriminators have two hidden layers of 128 and 64
neurons, LeakyReLU 0.2 and dropout 0.5. The top one takes all parties' last layers and hints; its
first layer is linear in them, so each party has its own columns of it and the server adds up what
they give: `top_input`.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from strategies.fedpsg.gan.draws import generator_for

HIDDEN = (128, 64)
LEAK = 0.2
DROPOUT = 0.5


def dense(sizes: list[int], seed: int, name: str, bias: bool = True) -> nn.ModuleList:
    """Return linear layers of these sizes, with Xavier's weights from a seed, as in GAIN."""
    generator = generator_for(seed, "weights", name)
    layers = [nn.Linear(a, b, bias=bias) for a, b in pairwise(sizes)]
    with torch.no_grad():
        for layer in layers:
            bound = (6.0 / (layer.in_features + layer.out_features)) ** 0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            if bias:
                layer.bias.zero_()
    return nn.ModuleList(layers)


def layers_of(net: nn.ModuleDict, name: str) -> list[nn.Module]:
    """Return the layers of a part of a network."""
    part: Any = net[name]
    return list(part)


def _hidden(layers: list[nn.Module], x: Tensor, generator: torch.Generator) -> Tensor:
    for layer in layers:
        x = nn.functional.leaky_relu(layer(x), LEAK)
        kept = torch.rand(x.shape, generator=generator) >= DROPOUT
        x = x * kept / (1.0 - DROPOUT)
    return x


def make_generator(width: int, more: int, kind: str, seed: int, party: str) -> nn.ModuleDict:
    """Return a party's generator."""
    d, name = width + more, f"generator {party}"
    if kind == "vgain":
        return nn.ModuleDict(
            {
                "encoder": dense([2 * width + more, d, 2 * width], seed, f"{name} encoder"),
                "decoder": dense([width + more, d, width], seed, f"{name} decoder"),
            }
        )
    return nn.ModuleDict({"layers": dense([2 * width + more, d, d, width], seed, name)})


def generate(
    net: nn.ModuleDict, x: Tensor, mask: Tensor, noise: Tensor, more: Tensor, seed: int, party: str
) -> tuple[Tensor, Tensor]:
    """Generate all entries of a batch: the paper's (9).

    Shapes: x, mask, noise (n, width): encoded values, which of them are there, and what stands for
    the others; more (n, n_more): further inputs; returns (n, width): between 0 and 1; returns
    (n,): of the code from a standard normal one (VGAIN), else 0.
    """
    given = torch.cat([mask * x + (1.0 - mask) * noise, mask, more], dim=1)
    if "encoder" not in net:
        out = _relu(layers_of(net, "layers"), given)
        return torch.sigmoid(out), torch.zeros(len(x))
    mean, log_variance = _relu(layers_of(net, "encoder"), given).chunk(2, dim=1)
    log_variance = log_variance.clamp(-10.0, 10.0)
    drawn = torch.randn(mean.shape, generator=generator_for(seed, "code", party))
    code = mean + torch.exp(0.5 * log_variance) * drawn
    out = _relu(layers_of(net, "decoder"), torch.cat([code, more], dim=1))
    divergence = 0.5 * (mean**2 + log_variance.exp() - 1.0 - log_variance).sum(dim=1)
    return torch.sigmoid(out), divergence


def _relu(layers: list[nn.Module], x: Tensor) -> Tensor:
    for layer in layers[:-1]:
        x = torch.relu(layer(x))
    last: Tensor = layers[-1](x)
    return last


def make_bottom(width: int, seed: int, party: str) -> nn.ModuleDict:
    """Return a party's bottom discriminator, and its columns of the top one's first layer."""
    return nn.ModuleDict(
        {
            "bottom": dense([2 * width, *HIDDEN], seed, f"bottom {party}"),
            "top": dense([HIDDEN[-1] + width, HIDDEN[0]], seed, f"top {party}", bias=False),
        }
    )


def top_input(net: nn.ModuleDict, x: Tensor, hint: Tensor, seed: int, party: str) -> Tensor:
    """Return a party's term of the top discriminator's first layer; shape (n, 128).

    Shapes: x, hint (n, width): imputed values and the hint: the paper's (14).
    """
    dropped = generator_for(seed, "bottom", party)
    h = _hidden(layers_of(net, "bottom"), torch.cat([x, hint], dim=1), dropped)
    term: Tensor = layers_of(net, "top")[0](torch.cat([h, hint], dim=1))
    return term


def make_top(width: int, n_labels: int, seed: int) -> nn.ModuleDict:
    """Return the server's part of the top discriminator."""
    layers = {"rest": dense([*HIDDEN, width], seed, "top rest")}
    layers["first"] = dense([max(n_labels, 1), HIDDEN[0]], seed, "top first")
    return nn.ModuleDict(layers)


def discriminate(net: nn.ModuleDict, total: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Return for each encoded entry the log-odds of being observed: the paper's (15).

    Shapes: total (n, 128): sum of `top_input` over the parties.
    """
    dropped = generator_for(seed, "top")
    first = nn.functional.leaky_relu(total + layers_of(net, "first")[0](labels), LEAK)
    first = first * (torch.rand(first.shape, generator=dropped) >= DROPOUT) / (1.0 - DROPOUT)
    rest = layers_of(net, "rest")
    log_odds: Tensor = rest[-1](_hidden(rest[:-1], first, dropped))
    return log_odds
