"""TVAE: a variational autoencoder of a table's rows.

Xu, Skoularidou, Cuesta-Infante and Veeramachaneni, "Modeling tabular data using conditional GAN"
(2019), Section 4.4: encoder and decoder with two hidden layers of 128, a code of 128 numbers, a
variance for each distance from a mode, reconstruction weighted by 2 as in the authors' code.
"""

import torch
from torch import Tensor, nn

from simulations.fedpsg.generators.base import LocalGenerator, multilayer
from simulations.fedpsg.generators.encodings import Modes
from strategies.neural.networks import descend

_HIDDEN, _CODE, _WEIGHT = 128, 128, 2.0


class TVAE(LocalGenerator):
    """See the module; `LocalGenerator` has the parameters."""

    encodes = Modes
    encoding: Modes

    def build(self, width: int) -> None:
        """Make both networks."""
        self.encoder = multilayer([width, _HIDDEN, _HIDDEN, 2 * _CODE])
        self.decoder = multilayer([_CODE, _HIDDEN, _HIDDEN, width])
        self.log_sigma = nn.Parameter(torch.full((width,), -1.0))
        parameters = [*self.encoder.parameters(), *self.decoder.parameters(), self.log_sigma]
        self.optimiser = torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=1e-5)

    def step(self, x: Tensor) -> float:
        """Take a step on the evidence's lower bound."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        log_variance = log_variance.clamp(-10.0, 10.0)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        made = self.decoder(code)
        loss = x.new_zeros(())
        for place in self.encoding.choices:
            loss = loss + nn.functional.cross_entropy(
                made[:, place], x[:, place].argmax(dim=1), reduction="sum"
            )
        for column in self.encoding.distances:
            log_sigma = self.log_sigma[column].clamp(-4.6, 0.0)
            error = x[:, column] - torch.tanh(made[:, column])
            loss = loss + (error**2 / 2 * torch.exp(-2 * log_sigma) + log_sigma).sum()
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1.0 - log_variance).sum()
        total = (_WEIGHT * loss + divergence) / len(x)
        descend(self.optimiser, [total])
        return float(total.detach())

    def draw(self, count: int) -> Tensor:
        """Decode random codes; modes and levels are drawn by the decoder's shares."""
        made = self.decoder(torch.randn(count, _CODE))
        out = torch.zeros_like(made)
        for column in self.encoding.distances:
            sigma = torch.exp(self.log_sigma[column].clamp(-4.6, 0.0))
            out[:, column] = torch.tanh(made[:, column]) + sigma * torch.randn(count)
        for place in self.encoding.choices:
            drawn = torch.multinomial(torch.softmax(made[:, place], dim=1), 1)
            out[:, place] = nn.functional.one_hot(drawn[:, 0], place.stop - place.start).float()
        return out
