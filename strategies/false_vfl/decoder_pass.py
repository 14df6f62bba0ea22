"""A party's log likelihood of a batch, with what the server sent of it as leaves of the graph."""

import torch
from torch import Tensor

from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import ProtocolError
from strategies.false_vfl.gaussian import draw_normals
from strategies.false_vfl.hardware import to_numpy, to_tensor
from strategies.false_vfl.party_data import Held
from strategies.false_vfl.party_model import PartyNets
from strategies.false_vfl.server_model import draw
from strategies.false_vfl.shared_draws import shared_draws

MEAN_LIMIT, PRECISION_LIMIT = 2.0**8, 2.0**12
"""What a party sends at most of an embedding's mean and precision."""

TERM_LIMIT, GRADIENT_LIMIT = 2.0**18, 2.0**14
"""What a party sends at most of a log likelihood, and of a gradient by sample."""


class Graph:
    """The log likelihood of a batch, with the posterior's parameters as leaves.

    Shapes: mean, log_sigma (n_given, h_dim).
    """

    terms: Tensor

    def __init__(
        self, nets: PartyNets, held: Held, n_rows: int, mean: AnyArray, log_sigma: AnyArray
    ) -> None:
        self._nets, self._held, self._n_rows = nets, held, n_rows
        self.mean, self.log_sigma = (
            to_tensor(values, held.x).requires_grad_() for values in (mean, log_sigma)
        )
        everywhere = torch.arange(n_rows, device=held.x.device)
        self.rows = held.places if nets.indicator is None else everywhere
        if len(self.mean) != len(self.rows):
            raise ProtocolError(
                f"expected the posterior of {len(self.rows)} rows, got that of {len(self.mean)}"
            )

    def forward(self, seed: int, n_draws: int, noise_seed: int, dtype: torch.dtype) -> None:
        """Compute `terms`, shape (n_given, n_draws)."""
        shape = self._n_rows, n_draws
        noise = shared_draws.normals(seed, "h", (*shape, self.mean.shape[1]), dtype)
        x, known, places = self._held
        h = draw(self.mean, self.log_sigma, noise[self.rows.cpu()].to(x.device))
        if self._nets.indicator is None:
            self.terms = self._nets.log_terms(x, known, torch.arange(len(x), device=x.device), h)
            return
        of_x = draw_normals(noise_seed, "x", (*shape, x.shape[1]), dtype).to(x.device)
        self.terms = self._nets.log_terms(x, known, places, h, of_x)

    def sent(self) -> AnyArray:
        """Return the terms of all rows of the batch, 0 where the party has nothing to say."""
        terms = self.terms.detach().clamp(-TERM_LIMIT, TERM_LIMIT)
        return scatter(terms, self.rows, self._n_rows)


def scatter(values: Tensor, places: Tensor, n_rows: int) -> AnyArray:
    """Put rows at their places, among zeros; shape (n_rows, ...)."""
    full = values.new_zeros((n_rows, *values.shape[1:]))
    return to_numpy(full.index_copy(0, places, values))
