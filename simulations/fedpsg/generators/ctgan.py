"""CTGAN: a conditional GAN of a table's rows, trained by sampling.

Xu, Skoularidou, Cuesta-Infante and Veeramachaneni, "Modeling tabular data using conditional GAN"
(2019), Sections 4.2 and 4.3: mode-specific normalisation; a condition picks one level of one
attribute, by the logarithm of its frequency; the critic sees ten rows at a time (PacGAN) and has a
gradient penalty; the generator pays for rows that miss their condition. Hidden layers of 256 as
there, one step of the critic for each of the generator. A table without levels has no condition.
"""

import pandas as pd
import torch
from torch import Tensor, nn

from simulations.fedpsg.generators.base import LocalGenerator, multilayer
from simulations.fedpsg.generators.encodings import Modes
from strategies.neural.networks import descend

_HIDDEN, _NOISE, _PAC, _PENALTY, _TAU = 256, 128, 10, 10.0, 0.2


class _Residual(nn.Module):
    """A layer whose output stands beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(width, _HIDDEN), nn.BatchNorm1d(_HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(self.norm(self.layer(x))), x], dim=1)


class CTGAN(LocalGenerator):
    """See the module; `LocalGenerator` has the parameters."""

    learning_rate = 2e-4
    encodes = Modes
    encoding: Modes

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Fit the encoding and return the table encoded."""
        self.batch -= self.batch % _PAC
        x = super().encode(frame)
        places = [block.place for block in self.encoding.blocks if block.levels is not None]
        self.places, self.n_conditions = places, sum(p.stop - p.start for p in places)
        columns = [column for place in places for column in range(place.start, place.stop)]
        self.counts = [x[:, place].sum(dim=0) for place in places]
        # By level, the rows that have it: training by sampling takes one of them.
        rows = [torch.nonzero(x[:, column])[:, 0] for column in columns]
        self.rows = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)
        self.held = torch.tensor([len(r) for r in rows], dtype=torch.long)
        self.first = torch.cumsum(self.held, dim=0) - self.held
        self.table = x
        return x

    def build(self, width: int) -> None:
        """Make generator and critic."""
        given = _NOISE + self.n_conditions
        self.generator = nn.Sequential(
            _Residual(given), _Residual(given + _HIDDEN), nn.Linear(given + 2 * _HIDDEN, width)
        )
        sizes = [_PAC * (width + self.n_conditions), _HIDDEN, _HIDDEN, 1]
        self.critic = multilayer(sizes, leak=0.2, dropout=0.5)
        self.for_generator, self.for_critic = (
            torch.optim.Adam(
                net.parameters(), lr=self.learning_rate, betas=(0.5, 0.9), weight_decay=1e-6
            )
            for net in (self.generator, self.critic)
        )

    def _conditions(self, count: int, by_log: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Draw conditions; return them, one-hot, the attribute each is about, and which it is."""
        if not self.places:
            nothing = torch.zeros(0, dtype=torch.long)
            return torch.zeros(count, 0), nothing, nothing
        attribute = torch.randint(len(self.places), (count,))
        start, drawn = 0, []
        for counts in self.counts:
            weights = torch.log1p(counts) if by_log else counts
            drawn.append(start + torch.multinomial(weights, count, replacement=True))
            start += len(counts)
        column = torch.stack(drawn)[attribute, torch.arange(count)]
        return nn.functional.one_hot(column, self.n_conditions).float(), attribute, column

    def _generate(self, conditions: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(conditions), _NOISE)
        raw = self.generator(torch.cat([noise, conditions], dim=1))
        parts, distances = [], set(self.encoding.distances)
        for place in self.encoding.choices:
            if place.start - 1 in distances:
                parts.append(torch.tanh(raw[:, place.start - 1 : place.start]))
            parts.append(nn.functional.gumbel_softmax(raw[:, place], tau=_TAU))
        return raw, torch.cat(parts, dim=1)

    def _score(self, x: Tensor, conditions: Tensor) -> Tensor:
        both = torch.cat([x, conditions], dim=1)
        found: Tensor = self.critic(both.reshape(len(both) // _PAC, -1))
        return found

    def step(self, x: Tensor) -> float:
        """Train the critic, then the generator."""
        conditions, attribute, column = self._conditions(len(x), by_log=True)
        if self.places:
            chosen = (torch.rand(len(x)) * self.held[column]).long()
            x = self.table[self.rows[self.first[column] + chosen]]
        with torch.no_grad():
            _, made = self._generate(conditions)
        mixed = torch.rand(len(x) // _PAC, 1).repeat_interleave(_PAC, dim=0)
        between = (mixed * x + (1 - mixed) * made).requires_grad_()
        score = self._score(between, conditions)
        (slope,) = torch.autograd.grad(score.sum(), between, create_graph=True)
        slope = slope.reshape(len(slope) // _PAC, -1).norm(dim=1)
        penalty = _PENALTY * ((slope - 1.0) ** 2).mean()
        against = self._score(made, conditions).mean() - self._score(x, conditions).mean()
        descend(self.for_critic, [against + penalty])
        conditions, attribute, column = self._conditions(len(x), by_log=True)
        raw, made = self._generate(conditions)
        loss = -self._score(made, conditions).mean()
        start = 0
        for j, place in enumerate(self.places):
            mine = attribute == j
            if mine.any():
                missed = nn.functional.cross_entropy(
                    raw[mine, place], column[mine] - start, reduction="sum"
                )
                loss = loss + missed / len(x)
            start += place.stop - place.start
        descend(self.for_generator, [loss])
        return float(loss.detach())

    def draw(self, count: int) -> Tensor:
        """Generate rows under conditions as frequent as in the table."""
        self.generator.eval()
        conditions, _, _ = self._conditions(count, by_log=False)
        _, out = self._generate(conditions)
        return out
