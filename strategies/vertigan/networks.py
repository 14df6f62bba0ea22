"""The networks of VertiGAN: a common trunk at the server, a branch and a critic at each party.

Jiang, Zhang, Zhou and Grossklags, "Distributed GAN-based privacy-preserving publication of
vertically-partitioned data" (PoPETs 2023): a multi-output global generator, local discriminators.
Critics are those of Wasserstein's distance with a gradient penalty (Gulrajani, Ahmed, Arjovsky,
Dumoulin and Courville, 2017, (3), five updates for one of the generator). The penalty is 1 in place
of 10, since encoded values lie between 0 and 1, and critics learn ten times as fast as the
generator (two time scales; Heusel et al., 2017): with 10, and one rate, columns' means wandered.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from strategies.fedpsg.gan.networks import set_gradients
from strategies.neural.networks import Packed

NOISE = 64
"""Numbers that a synthetic sample starts from."""

TRUNK = 128
"""Numbers that the trunk hands to every branch."""

WIDTH = 128
PENALTY = 1.0
CRITIC_STEPS = 5
CRITIC_RATE = 10.0
"""Learning rate of the critic, in units of the generator's."""

_BETAS = (0.5, 0.9)  # of Adam, as in Gulrajani et al.


def make_net(sizes: list[int], seed: int, leak: float = 0.0) -> nn.Sequential:
    """Return linear layers with Xavier's weights from a seed, and leaky rectifiers between."""
    generator, layers = torch.Generator().manual_seed(seed), list[nn.Module]()
    for i, (a, b) in enumerate(pairwise(sizes)):
        linear = nn.Linear(a, b)
        bound = (6.0 / (a + b)) ** 0.5
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.zero_()
        layers += [linear] if i == len(sizes) - 2 else [linear, nn.LeakyReLU(leak)]
    return nn.Sequential(*layers)


class Trunk(Packed):
    """The server's part of the generator, and its optimiser."""

    def __init__(self, seed: int, learning_rate: float) -> None:
        self.net = make_net([NOISE, WIDTH, TRUNK], seed)
        self.optimiser = torch.optim.Adam(self.net.parameters(), learning_rate, betas=_BETAS)

    def _parts(self) -> dict[str, Any]:
        return {"net": self.net, "for": self.optimiser}

    def hidden(self, noise: Tensor) -> Tensor:
        """Map noise of shape (n, NOISE) to what branches are given, shape (n, TRUNK)."""
        made: Tensor = torch.relu(self.net(noise))
        return made

    def update(self, hidden: Tensor, gradient: Tensor) -> None:
        """Move the trunk by the gradient of all parties' losses with regard to `hidden`."""
        parameters = list(self.net.parameters())
        set_gradients(self.net, torch.autograd.grad([hidden], parameters, [gradient]))
        self.optimiser.step()


@dataclass(frozen=True)
class Blocks:
    """Which encoded columns belong together."""

    widths: tuple[int, ...]  # Columns of each attribute
    n_levels: tuple[int, ...]  # Of each attribute; 0 of a number

    def values(self, out: Tensor) -> Tensor:
        """Return numbers between 0 and 1, and probabilities of levels."""
        parts, at = [], 0
        for width, levels in zip(self.widths, self.n_levels, strict=True):
            part, at = out[:, at : at + width], at + width
            parts.append(torch.softmax(part, dim=1) if levels else torch.sigmoid(part))
        return torch.cat(parts, dim=1)


class Branch(Packed):
    """A party's branch of the generator, its critic, and their optimisers."""

    def __init__(self, blocks: Blocks, seed: int, learning_rate: float) -> None:
        self.blocks, width = blocks, sum(blocks.widths)
        self.head = make_net([TRUNK, WIDTH, width], seed)
        self.critic = make_net([width, WIDTH, WIDTH, 1], seed + 1, leak=0.2)
        self.for_head = torch.optim.Adam(self.head.parameters(), learning_rate, betas=_BETAS)
        self.for_critic = torch.optim.Adam(
            self.critic.parameters(), CRITIC_RATE * learning_rate, betas=_BETAS
        )

    def _parts(self) -> dict[str, Any]:
        return {
            "head": self.head,
            "critic": self.critic,
            "for head": self.for_head,
            "for critic": self.for_critic,
        }

    def made(self, hidden: Tensor) -> Tensor:
        """Return encoded synthetic samples; shape (n, width)."""
        return self.blocks.values(self.head(hidden))

    def critic_loss(self, real: Tensor, made: Tensor, mix: Tensor) -> Tensor:
        """Return the critic's loss with the gradient penalty.

        Shapes: real, made (n, width); mix (n, 1): where between the two the gradient is looked at,
        0 to 1.
        """
        between = (mix * real + (1.0 - mix) * made).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), [between], create_graph=True)
        penalty = ((slope.norm(dim=1) - 1.0) ** 2).mean()
        loss: Tensor = self.critic(made).mean() - self.critic(real).mean() + PENALTY * penalty
        return loss

    def update_critic(self, real: Tensor, hidden: Tensor, mix: Tensor) -> float:
        """Move the critic on one batch; returns its loss."""
        with torch.no_grad():
            made = self.made(hidden)
        loss = self.critic_loss(real, made, mix)
        set_gradients(self.critic, torch.autograd.grad([loss], list(self.critic.parameters())))
        self.for_critic.step()
        return float(loss.detach())

    def update_head(self, hidden: Tensor) -> Tensor:
        """Move the branch, and return the gradient of its loss by `hidden`; shape (n, TRUNK)."""
        hidden = hidden.clone().requires_grad_()
        loss = -self.critic(self.made(hidden)).mean()
        (gradient, *own) = torch.autograd.grad(loss, [hidden, *self.head.parameters()])
        set_gradients(self.head, own)
        self.for_head.step()
        return gradient
