"""TabDDPM: a diffusion model of a table's rows.

Kotelnikov, Baranchuk, Rubachev and Babenko, "TabDDPM: modelling tabular data with diffusion models"
(2023): Gaussian diffusion of numbers (normal scores of their ranks), multinomial diffusion of each
attribute with levels (Hoogeboom et al., 2021), one network with an embedding of the time for both.
Cosine schedule and a network that predicts the noise and the levels as there; 100 steps of
diffusion instead of 1,000, hidden layers of 256.
"""

import math

import pandas as pd
import torch
from torch import Tensor, nn

from simulations.fedpsg.generators.base import LocalGenerator, multilayer
from simulations.fedpsg.generators.encodings import Quantiles
from strategies.neural.networks import descend

_HIDDEN, _TIME, _STEPS = 256, 64, 100
_SMALLEST = 1e-30


class TabDDPM(LocalGenerator):
    """See the module; `LocalGenerator` has the parameters."""

    encodes = Quantiles

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Fit the encoding and return the table encoded."""
        x = super().encode(frame)
        self.numbers = [b.start for b in self.encoding.blocks if b.levels is None]
        self.levels = [b.place for b in self.encoding.blocks if b.levels is not None]
        return x

    def build(self, width: int) -> None:
        """Make the network and the schedule (Nichol and Dhariwal's cosine)."""
        self.width = width
        self.network = multilayer([width + _TIME, _HIDDEN, _HIDDEN, width])
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=self.learning_rate)
        time = torch.arange(_STEPS + 1, dtype=torch.float64) / _STEPS
        kept = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
        ratio = (kept[1:] / kept[:-1]).clamp(min=0.001)
        self.alpha = ratio.float()
        self.alpha_bar = torch.cumprod(ratio, dim=0).float()

    def _predict(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(_TIME // 2) / (_TIME // 2))
        found: Tensor = self.network(torch.cat([x, torch.sin(angles), torch.cos(angles)], dim=1))
        return found

    def step(self, x: Tensor) -> float:
        """Predict the noise of numbers and the levels behind noisy ones, at a random time."""
        t = torch.randint(_STEPS, (len(x),))
        bar = self.alpha_bar[t][:, None]
        noise = torch.randn(len(x), len(self.numbers))
        noisy = x.clone()
        noisy[:, self.numbers] = bar.sqrt() * x[:, self.numbers] + (1 - bar).sqrt() * noise
        for place in self.levels:
            count = place.stop - place.start
            noisy[:, place] = _draw(bar * x[:, place] + (1 - bar) / count)
        made = self._predict(noisy, t)
        loss = ((made[:, self.numbers] - noise) ** 2).mean() if self.numbers else x.new_zeros(())
        for place in self.levels:
            guess = torch.softmax(made[:, place], dim=1)
            real = self._posterior(noisy[:, place], x[:, place], t)
            ours = self._posterior(noisy[:, place], guess, t)
            gap = (real * (_log(real) - _log(ours))).sum(dim=1)
            # At the first time there is nothing before: the likelihood of the level itself.
            first = -(x[:, place] * _log(guess)).sum(dim=1)
            loss = loss + torch.where(t == 0, first, gap).mean() / len(self.levels)
        descend(self.optimiser, [loss])
        return float(loss.detach())

    def _posterior(self, noisy: Tensor, origin: Tensor, t: Tensor) -> Tensor:
        """Return shares of the levels one time before, given the noisy level and the origin's."""
        count = noisy.shape[1]
        alpha = self.alpha[t][:, None]
        before = torch.where(t[:, None] > 0, self.alpha_bar[(t - 1).clamp(min=0)][:, None], 1.0)
        found = (alpha * noisy + (1 - alpha) / count) * (before * origin + (1 - before) / count)
        return found / found.sum(dim=1, keepdim=True).clamp(min=_SMALLEST)

    def draw(self, count: int) -> Tensor:
        """Go back from noise, time by time."""
        x = torch.zeros(count, self.width)
        x[:, self.numbers] = torch.randn(count, len(self.numbers))
        for place in self.levels:
            width = place.stop - place.start
            x[:, place] = _draw(torch.full((count, width), 1.0 / width))
        for time in reversed(range(_STEPS)):
            t = torch.full((count,), time)
            made = self._predict(x, t)
            alpha, bar = self.alpha[time], self.alpha_bar[time]
            before = self.alpha_bar[time - 1] if time else torch.tensor(1.0)
            z, noise = x[:, self.numbers], made[:, self.numbers]
            origin = ((z - (1 - bar).sqrt() * noise) / bar.sqrt()).clamp(-3.5, 3.5)
            mean = (before.sqrt() * (1 - alpha) * origin + alpha.sqrt() * (1 - before) * z) / (
                1 - bar
            )
            spread = ((1 - before) / (1 - bar) * (1 - alpha)).sqrt()
            x = x.clone()
            x[:, self.numbers] = mean + spread * torch.randn_like(mean)
            for place in self.levels:
                guess = torch.softmax(made[:, place], dim=1)
                shares = guess if time == 0 else self._posterior(x[:, place], guess, t)
                x[:, place] = _draw(shares)
        return x


def _draw(shares: Tensor) -> Tensor:
    drawn = torch.multinomial(shares.clamp(min=0.0) + _SMALLEST, 1)[:, 0]
    return nn.functional.one_hot(drawn, shares.shape[1]).float()


def _log(shares: Tensor) -> Tensor:
    return torch.log(shares.clamp(min=_SMALLEST))
