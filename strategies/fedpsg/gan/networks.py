"""Random numbers of a training step: noise, hints and dropout, from the step's seed.

Each draw has a purpose and an owner, so that a party and the server draw the same hints, and a step
that is taken again the same of everything. They hide nothing.

The networks: a generator and a bottom discriminator at each party, a top one at the server.

Liu, He, Tan et al., Section 3.3 (2) and (3). Discriminators have two hidden layers of 128 and 64
neurons, LeakyReLU 0.2 and dropout 0.5. The top one takes all parties' last layers and hints; its
first layer is linear in them, so each party has its own columns of it and the server adds up what
they give: `top_input`.

The losses, with what the paper leaves open or prints otherwise.

Liu, He, Tan et al., (19) to (25), after Yoon, Jordon and van der Schaar, "GAIN" (2018).

* As printed, the discriminator's loss (20) sums over the entries whose hint is 0, with the hint as
  the target: the target is always 0, and a constant is learnt. Here as in GAIN: over the entries
  that the hint leaves open, with the mask as the target. The generator's (23) runs over those of
  them that are missing.
* ``alpha`` is not given in the paper. GAIN's value is 100.
* ``(L_A + L_B)^2 / 2`` is the square of the sum of all parties' reconstruction losses of a sample.
* VGAIN adds the divergence of its code; its weight is not given either.
"""

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

HINT = 0.9
"""Share of blocks that the hint gives away (the paper's and GAIN's rate, there of entries)."""

NOISE = 0.01
"""Largest noise in place of a missing entry, as in GAIN's code."""


def generator_for(seed: int, *purpose: Any) -> torch.Generator:
    """Return a generator for one purpose of one step."""
    text = "\0".join(map(str, (seed, *purpose))).encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(number)


def draw_noise(seed: int, owner: str, shape: tuple[int, int]) -> Tensor:
    """Return noise in [0, `NOISE`)."""
    return NOISE * torch.rand(shape, generator=generator_for(seed, "noise", owner))


def draw_open(seed: int, owner: str, shape: tuple[int, int]) -> Tensor:
    """Return 1 where the hint leaves a party's block of a sample open, else 0.

    GAIN leaves entries open one by one. Here a party lacks most entries of a sample or none, so the
    hint on one of them would tell of all others, and nothing of the values would have to be learnt.
    """
    drawn = torch.rand((shape[0], 1), generator=generator_for(seed, "hint", owner))
    return (drawn >= HINT).to(torch.float32).expand(shape)


def draw_shown(seed: int, owner: str, mask: Tensor, hideable: Tensor, share: float) -> Tensor:
    """Return the mask less what the networks shall generate although the party has it.

    Shapes: mask (n, width): what is there; hideable (width,): 1 for entries that some sample of
    the party lacks: the others are never generated.
    """
    if share <= 0.0:
        return mask
    drawn = torch.rand((len(mask), 1), generator=generator_for(seed, "hidden", owner))
    return mask * (1.0 - (drawn < share).to(torch.float32) * hideable)


def hint_of(mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the hint: the mask where it is given away, 0.5 where it is open (Yoon et al., (4))."""
    return mask * (1.0 - is_open) + 0.5 * is_open


def set_gradients(net: nn.Module, gradients: Iterable[Tensor]) -> None:
    """Hand an optimiser the gradients by a network's weights."""
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = gradient


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
    """Return a party's term, (n, 128), of the top discriminator's first layer: (14)."""
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
    """Return each entry's log-odds of being observed, by the sum of terms, (n, 128): (15)."""
    dropped = generator_for(seed, "top")
    first = nn.functional.leaky_relu(total + layers_of(net, "first")[0](labels), LEAK)
    first = first * (torch.rand(first.shape, generator=dropped) >= DROPOUT) / (1.0 - DROPOUT)
    rest = layers_of(net, "rest")
    log_odds: Tensor = rest[-1](_hidden(rest[:-1], first, dropped))
    return log_odds


ALPHA = 100.0
DIVERGENCE = 0.01
_SMALLEST = 1e-6


def reconstruction(x: Tensor, generated: Tensor, mask: Tensor, is_level: Tensor) -> Tensor:
    """Return a party's loss of each sample, over observed entries: (25) and what follows.

    Shapes: x, generated, mask (n, width); is_level (width,): where entries are of levels: cross-
    entropy there, squared error elsewhere.
    """
    entropy = -x * torch.log(generated.clamp_min(_SMALLEST))
    return (mask * torch.where(is_level, entropy, (generated - x) ** 2)).sum(dim=1)


def discriminator_loss(log_odds: Tensor, mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the mean over samples of (20), corrected."""
    each = nn.functional.binary_cross_entropy_with_logits(log_odds, mask, reduction="none")
    return (is_open * each).sum() / len(mask)


def adversarial_loss(log_odds: Tensor, mask: Tensor, is_open: Tensor) -> Tensor:
    """Return the mean over samples of (23), corrected: missing entries shall look observed."""
    each = nn.functional.softplus(-log_odds)  # -log of the probability
    return (is_open * (1.0 - mask) * each).sum() / len(mask)


def joint_reconstruction(total: Tensor, alpha: float = ALPHA) -> Tensor:
    """Return ``alpha / 2`` times the mean square of samples' losses over parties: (24)."""
    return alpha / 2.0 * (total**2).sum() / len(total)
