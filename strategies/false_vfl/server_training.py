"""The server's half of a pretraining step, between the three rounds; no Flower here.

With ``w_ij`` the normalised weights of the draws of row i, the gradient of the bound in anything is
``sum_ij w_ij d(log weight_ij)``. Log weights are sums of the parties' terms and the server's, so
each computes its part of the gradient by itself, down to the posterior's mean and log deviation.
There the parts are added up, and go back to the encoders.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strategies.false_vfl.bounds import log_bound, normalised_weights
from strategies.false_vfl.gaussian import draw_normals, posterior, posterior_gradients
from strategies.false_vfl.hardware import to_tensor
from strategies.false_vfl.networks import NetworkSettings
from strategies.false_vfl.server_model import ServerNets
from strategies.false_vfl.shared_draws import shared_draws

Array = npt.NDArray[np.floating]


class ServerStep:
    """One pretraining step.

    Shapes: mean_sum, precision_sum (n_rows, h_dim): sums over the parties that hold a row; counts
    (n_rows,): how many they are.
    """

    def __init__(
        self,
        nets: ServerNets,
        settings: NetworkSettings,
        mean_sum: Array,
        precision_sum: Array,
        counts: npt.NDArray[np.integer],
        seed: int,
        n_draws: int,
    ) -> None:
        own = next(nets.parameters())
        self._precision_sum, self._counts = to_tensor(precision_sum, own), to_tensor(counts, own)
        found = posterior(to_tensor(mean_sum, own), self._precision_sum, self._counts)
        self.mean, self.log_sigma = (values.requires_grad_() for values in found)
        shape = len(counts), n_draws
        noise_h = shared_draws.normals(seed, "h", (*shape, settings.h_dim), own.dtype)
        noise_z = draw_normals(seed, "z", (*shape, settings.z_dim), own.dtype)
        noise_h, noise_z = noise_h.to(own.device), noise_z.to(own.device)
        self.h, self._terms = nets.latent_terms(self.mean, self.log_sigma, noise_h, noise_z)

    def log_weights(self, party_terms: Array) -> Tensor:
        """Return the log weights of the draws, shape (n_rows, n_draws); for parameters see `weigh`.

        They are constants: no gradient goes through them.
        """
        return self._terms.detach() + to_tensor(party_terms, self._terms)

    def weigh(self, party_terms: Array) -> tuple[float, Tensor]:
        """Return the mean loss of the rows and the weights of their draws.

        Shapes: party_terms (n_rows, n_draws): sum over the parties of their terms of the log
        weights.
        """
        logs = self.log_weights(party_terms)
        self._weights = normalised_weights(logs)
        return -float(log_bound(logs).mean()), self._weights

    def go_backward(self, in_mean: Array, in_log_sigma: Array) -> tuple[Tensor, Tensor]:
        """Leave the gradients in the server's parameters; return those that parties need.

        Shapes: in_mean, in_log_sigma (n_rows, h_dim): sums of the parties' gradients of minus
        their weighted terms, row by row (not divided by the number of rows); returns (n_rows,
        h_dim): gradients of the mean loss in an observed party's own mean and precision.
        """
        n_rows = len(self.mean)
        loss = -(self._weights * self._terms).sum() / n_rows
        torch.autograd.backward([loss])
        assert self.mean.grad is not None
        assert self.log_sigma.grad is not None
        of_mean = self.mean.grad + to_tensor(in_mean, self.mean) / n_rows
        of_log_sigma = self.log_sigma.grad + to_tensor(in_log_sigma, self.mean) / n_rows
        return posterior_gradients(of_mean, of_log_sigma, self._precision_sum, self._counts)
