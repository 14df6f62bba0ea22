"""TableGAN: a convolutional GAN of a table's rows, each as a small square image.

Park, Mohammadi, Gorde, Jajodia, Park and Kim, "Data synthesis based on generative adversarial
networks" (2018): every attribute is one number between -1 and 1 (levels by their integer codes),
padded with zeros to a square; DCGAN's networks; the generator also pays for the distance of means
and standard deviations of the critic's features (information loss). Party B has no label, so the
paper's classifier is left out. Squares are at most 8 x 8; the paper's have 16 x 16.
"""

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flwr_vertical.arrays import Array
from simulations.fedpsg.generators.base import LocalGenerator
from simulations.fedpsg.generators.encodings import Block, block_of
from strategies.neural.networks import descend

_NOISE, _CHANNELS = 100, 32


class TableGAN(LocalGenerator):
    """See the module; `LocalGenerator` has the parameters."""

    learning_rate = 2e-4

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Scale every attribute to [-1, 1] and pad to a square."""
        self.blocks: list[Block] = []
        columns, self.low, self.high = [], [], []
        for j, name in enumerate(frame):
            block = block_of(str(name), frame[name], j, 1)
            self.blocks.append(block)
            if block.levels is not None:
                codes = block.one_hot(frame[name]).argmax(axis=1).astype(float)
            else:
                codes = frame[name].to_numpy(dtype=float)
            self.low.append(float(codes.min()))
            self.high.append(float(codes.max()))
            columns.append(2 * (codes - codes.min()) / max(np.ptp(codes), 1e-12) - 1)
        self.side = 4 if len(columns) <= 16 else 8
        out = np.zeros((len(frame), self.side**2))
        out[:, : len(columns)] = np.column_stack(columns)
        return torch.as_tensor(out).float()

    def decode(self, values: Array) -> pd.DataFrame:
        """Return squares as a table: the nearest code of levels, numbers in their range."""
        out: dict[str, object] = {}
        for j, block in enumerate(self.blocks):
            share = (np.clip(values[:, j], -1.0, 1.0) + 1) / 2
            codes = self.low[j] + share * (self.high[j] - self.low[j])
            if block.levels is not None:
                out[block.name] = block.levels[np.round(codes).astype(int)]
            else:
                out[block.name] = block.numbers(codes, self.low[j], self.high[j])
        return pd.DataFrame(out)

    def build(self, width: int) -> None:
        """Make generator and critic."""
        doublings = int(math.log2(self.side)) - 1  # from 2 x 2
        first = _CHANNELS * 2**doublings
        layers: list[nn.Module] = [
            nn.Linear(_NOISE, first * 4), nn.Unflatten(1, (first, 2, 2)),
            nn.BatchNorm2d(first), nn.ReLU(),
        ]  # fmt: skip
        critic: list[nn.Module] = []
        channels = first
        for i in range(doublings):
            last = i == doublings - 1
            layers.append(nn.ConvTranspose2d(channels, 1 if last else channels // 2, 4, 2, 1))
            layers += [nn.Tanh()] if last else [nn.BatchNorm2d(channels // 2), nn.ReLU()]
            channels //= 2
        channels = 1
        for i in range(doublings):
            critic.append(nn.Conv2d(channels, _CHANNELS * 2**i, 4, 2, 1))
            critic += [nn.LeakyReLU(0.2)] if not i else [nn.BatchNorm2d(_CHANNELS * 2**i),
                                                         nn.LeakyReLU(0.2)]  # fmt: skip
            channels = _CHANNELS * 2**i
        self.generator = nn.Sequential(*layers)
        self.features = nn.Sequential(*critic, nn.Flatten())
        self.verdict = nn.Linear(channels * 4, 1)
        critics = [*self.features.parameters(), *self.verdict.parameters()]
        self.for_generator, self.for_critic = (
            torch.optim.Adam(parameters, lr=self.learning_rate, betas=(0.5, 0.999))
            for parameters in ([*self.generator.parameters()], critics)
        )

    def _images(self, count: int) -> Tensor:
        found: Tensor = self.generator(torch.randn(count, _NOISE))
        return found

    def step(self, x: Tensor) -> float:
        """Train the critic, then the generator."""
        real = x.reshape(-1, 1, self.side, self.side)
        of_real = self.features(real)
        with torch.no_grad():
            made = self._images(len(x))
        softplus = nn.functional.softplus
        against = (
            softplus(-self.verdict(of_real)).mean()
            + softplus(self.verdict(self.features(made))).mean()
        )
        descend(self.for_critic, [against])
        of_made = self.features(self._images(len(x)))
        of_real = of_real.detach()
        loss = softplus(-self.verdict(of_made)).mean()
        loss = loss + (of_made.mean(dim=0) - of_real.mean(dim=0)).norm()
        loss = loss + (of_made.std(dim=0) - of_real.std(dim=0)).norm()
        descend(self.for_generator, [loss])
        return float(loss.detach())

    def draw(self, count: int) -> Tensor:
        """Generate squares."""
        self.generator.eval()
        return self._images(count).reshape(count, -1)
