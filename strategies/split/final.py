"""FinalNet: factorised interactions of all parties' columns, split at the first layer.

Zhu, Jia, Cai et al., "FINAL: Factorized Interaction Layer for CTR Prediction" (SIGIR 2023). Each
column is a field with an embedding of d numbers. A layer of factorised interactions is

    u, v = two halves of W x + b,    next x = (u, u * v),

so that each layer doubles the degree of the products of columns. Two blocks of such layers stand
side by side; the fields of the first are gated. Each gives log odds (or a number); the prediction
is the mean of both, and in training each also learns from that mean.

A block's first ``W x`` is linear in the embeddings of all fields: a sum of one map for each party,
which the party keeps. So parties send ``W_k x_k`` of both blocks, and the server has the sum; a
missing block adds nothing. Gates mix the fields of one party: those of several would take a round
more, or each party's own embeddings. There is no batch normalisation, whose statistics would be of
the sums.
"""

import math

import torch
from torch import Tensor, nn

from strategies.neural.networks import new_generator
from strategies.split.methods import SplitNetworks

N_BLOCKS = 2


class Fields(nn.Module):
    """A party's columns as embeddings, and the same ones gated."""

    def __init__(self, n_columns: int, dimension: int, generator: torch.Generator) -> None:
        super().__init__()
        # One map from a number to d numbers for each column.
        self.embed = nn.Conv1d(n_columns, n_columns * dimension, 1, groups=n_columns)
        for parameter in self.embed.parameters():
            nn.init.uniform_(parameter, -1.0, 1.0, generator=generator)
        self.gate = nn.Linear(n_columns, n_columns)
        self.open_gates()

    def open_gates(self) -> None:
        """Set all gates to 1, where training begins."""
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings, then gated ones, shape (n_rows, 2 * n_columns * d)."""
        # Of no rows, as a batch may have none of a party, the last length follows from nothing.
        dimension = self.embed.out_channels // self.embed.in_channels
        plain = self.embed(x[..., None]).reshape(*x.shape, dimension)
        gates = self.gate(plain.transpose(1, 2)).transpose(1, 2)
        both: Tensor = torch.cat([plain, plain * gates], dim=1).flatten(start_dim=1)
        return both


class FirstMaps(nn.Module):
    """A party's part of the first layer of both blocks."""

    def __init__(
        self, n_columns: int, dimension: int, width: int, n_parties: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._plain = n_columns * dimension
        self.gated = nn.Linear(2 * self._plain, width, bias=False)
        self.plain = nn.Linear(self._plain, width, bias=False)
        for layer in (self.gated, self.plain):
            limit = 1.0 / math.sqrt(n_parties * layer.in_features)
            nn.init.uniform_(layer.weight, -limit, limit, generator=generator)

    def forward(self, fields: Tensor) -> Tensor:
        """Return what the party sends of both blocks, shape (n_rows, 2 * width)."""
        both = [self.gated(fields), self.plain(fields[:, : self._plain])]
        return torch.cat(both, dim=1)


class FinalHead(nn.Module):
    """The server's network: all of both blocks but the products of their first layers."""

    def __init__(
        self, networks: SplitNetworks, n_classes: int | None, n_parties: int, seed: int
    ) -> None:
        super().__init__()
        self.n_classes = n_classes
        generator = new_generator(seed, "weights of the discriminator")
        width, limit = networks.width, 1.0 / math.sqrt(n_parties * networks.latent_dim)
        first = torch.empty(N_BLOCKS * width).uniform_(-limit, limit, generator=generator)
        self.bias = nn.Parameter(first)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    *(nn.Linear(width, width) for _ in range(networks.layers - 1)),
                    nn.Linear(width, n_classes or 1),
                ]
            )
            for _ in range(N_BLOCKS)
        )
        limit = 1.0 / math.sqrt(width)
        for parameter in self.blocks.parameters():
            nn.init.uniform_(parameter, -limit, limit, generator=generator)

    def forward(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return log odds of classes, or a standardised number.

        Shapes: sums (..., 2 * width): over the parties that hold the sample; counts (...): how
        many these are; of no use here; returns (..., n_classes).
        """
        given = torch.stack(self._of_blocks(sums)).mean(0)
        return given[..., 0] if self.n_classes is None else given

    def losses(self, sums: Tensor, counts: Tensor, y: Tensor) -> Tensor:
        """Return losses of the mean and of both blocks, which learn from the mean; shape (...).

        Shapes: y (n_rows,): of the last axis but one of `sums`: classes 0, 1, ... or standardised
        numbers.
        """
        blocks = self._of_blocks(sums)
        mean = torch.stack(blocks).mean(0)
        if self.n_classes is None:
            total: Tensor = 0.5 * (mean[..., 0] - y).square()
            for own in blocks:
                total = total + 0.5 * (own - mean.detach())[..., 0].square()
            return total
        chosen = y.expand(mean.shape[:-1])[..., None]
        total = -mean.log_softmax(-1).gather(-1, chosen)[..., 0]
        told = mean.detach().softmax(-1)
        for own in blocks:
            total = total - (told * own.log_softmax(-1)).sum(-1)
        return total

    def _of_blocks(self, sums: Tensor) -> list[Tensor]:
        found = []
        parts = (sums + self.bias).chunk(N_BLOCKS, dim=-1)
        for part, layers in zip(parts, self.blocks, strict=True):
            given = interact(part)
            assert isinstance(layers, nn.ModuleList)
            for layer in layers[:-1]:
                given = interact(layer(given))
            found.append(layers[-1](given))
        return found


def interact(given: Tensor) -> Tensor:
    """Return the first half, and its products with the second; shape as given."""
    u, v = given.chunk(2, dim=-1)
    return torch.cat([u, u * v], dim=-1)
