"""The rounds of FALSE-VFL as the server sees them, and what it computes between them.

With ``w_ij`` the normalised weights of the draws of row i, the gradient of the bound in anything is
``sum_ij w_ij d(log weight_ij)``. Log weights are sums of the parties' terms and the server's, so
each computes its part of the gradient by itself, down to the posterior's mean and log deviation.
There the parts are added up, and go back to the encoders.
"""

from typing import Any

import torch
from torch import Tensor

from flwr_vertical import Federation
from flwr_vertical.arrays import AnyArray, Flags, Indices
from strategies.false_vfl.networks import ServerNets
from strategies.false_vfl.posterior import (
    draw_normals,
    log_bound,
    normalised_weights,
    posterior,
    posterior_gradients,
    shared_normals,
)
from strategies.neural.hardware import to_numpy, to_tensor
from strategies.neural.training import NeuralRounds

MEAN_LIMIT, PRECISION_LIMIT = 2.0**8, 2.0**12
"""What a party sends at most of an embedding's mean and precision."""

TERM_LIMIT, GRADIENT_LIMIT = 2.0**18, 2.0**14
"""What a party sends at most of a log likelihood, and of a gradient by sample."""


class ServerStep:
    """One pretraining step.

    Shapes: sums, twice (n_rows, h_dim): of means and of precisions, over the parties that hold a
    row; counts (n_rows,): how many they are.
    """

    def __init__(
        self,
        nets: ServerNets,
        sums: tuple[AnyArray, AnyArray],
        counts: Indices,
        seed: int,
        n_draws: int,
    ) -> None:
        own = next(nets.parameters())
        mean_sum, self._precision_sum = (to_tensor(values, own) for values in sums)
        self._counts = to_tensor(counts, own)
        found = posterior(mean_sum, self._precision_sum, self._counts)
        self.mean, self.log_sigma = (values.requires_grad_() for values in found)
        shape = len(counts), n_draws
        noise_h = shared_normals(seed, "h", (*shape, nets.h_dim), own.dtype)
        noise_z = draw_normals(seed, "z", (*shape, nets.z_dim), own.dtype)
        noise_h, noise_z = noise_h.to(own.device), noise_z.to(own.device)
        self.h, self._terms = nets.latent_terms(self.mean, self.log_sigma, noise_h, noise_z)

    def log_weights(self, party_terms: AnyArray) -> Tensor:
        """Return the log weights of the draws, shape (n_rows, n_draws), through no gradient."""
        return self._terms.detach() + to_tensor(party_terms, self._terms)

    def weigh(self, party_terms: AnyArray) -> tuple[float, Tensor]:
        """Return the mean loss of rows and the weights of draws, by the parties' summed terms."""
        logs = self.log_weights(party_terms)
        self._weights = normalised_weights(logs)
        return -float(log_bound(logs).mean()), self._weights

    def go_backward(self, in_mean: AnyArray, in_log_sigma: AnyArray) -> tuple[Tensor, Tensor]:
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


class Rounds(NeuralRounds):
    """Messages of a run, by what they are for."""

    def __init__(self, federation: Federation, mask: Flags, *, per_party: bool) -> None:
        super().__init__(federation, mask)
        self._per_party = per_party

    def encode(self, batch: Indices, carried: dict[str, Any]) -> tuple[AnyArray, AnyArray]:
        """Have parties learn from the last batch, if there was one, and encode this one.

        Shapes: batch (n_rows,): aligned rows; returns (n_rows, h_dim): sums over the parties that
        hold a row.
        """
        gradients = {
            name: {
                "in_mean": carried.pop(f"{name} mean"),
                "in_precision": carried.pop(f"{name} precision"),
            }
            for name in self.parties
            if f"{name} mean" in carried
        }
        asked = {name: carried.pop(name) for name in ("remember", "recall") if name in carried}
        total = self.federation.sum(
            "encode",
            {"batch": batch} | asked,
            per_party=gradients or None,
            scale={"mean": MEAN_LIMIT, "precision": PRECISION_LIMIT},
        )
        return total["mean"], total["precision"]

    def carry(
        self, batch: Indices, in_mean: Tensor, in_precision: Tensor, carried: dict[str, Any]
    ) -> None:
        """Keep gradients for the next `encode`: of each party, those of the rows it holds."""
        for k, name in enumerate(self.parties):
            held = self.held[batch, k]
            carried[f"{name} mean"] = to_numpy(in_mean)[held]
            carried[f"{name} precision"] = to_numpy(in_precision)[held]

    def log_terms(self, batch: Indices, mean: Tensor, log_sigma: Tensor, seed: int) -> AnyArray:
        """Have parties draw h; return the sum of their terms, shape (n_rows, n_draws)."""
        posterior = self._rows(batch, mean=mean, log_sigma=log_sigma)
        return self._terms("log_terms", {"seed": seed}, posterior)

    def go_backward(self, batch: Indices, weights: Tensor) -> tuple[AnyArray, AnyArray]:
        """Have parties go backward; return sums of gradients, shape (n_rows, h_dim)."""
        total = self.federation.sum(
            "go_backward",
            per_party=self._rows(batch, weights=weights),
            scale={"in_mean": GRADIENT_LIMIT, "in_log_sigma": GRADIENT_LIMIT},
        )
        return total["in_mean"], total["in_log_sigma"]

    def score(
        self, batch: Indices, step: ServerStep, seeds: list[int], n_draws: int, *, tell: bool
    ) -> AnyArray:
        """Return sums of terms for several seeds, shape (n_seeds, n_rows, n_draws)."""
        posterior = self._rows(batch, mean=step.mean, log_sigma=step.log_sigma) if tell else None
        return self._terms("score", {"seeds": seeds, "n_draws": n_draws}, posterior)

    def _terms(self, step: str, arguments: dict[str, Any], posterior: Any) -> AnyArray:
        scale = {"terms": TERM_LIMIT}
        terms: AnyArray = self.federation.sum(step, arguments, per_party=posterior, scale=scale)[
            "terms"
        ]
        return terms

    def _rows(self, batch: Indices, **values: Tensor) -> dict[str, dict[str, AnyArray]]:
        arrays = {name: to_numpy(value) for name, value in values.items()}
        if not self._per_party:
            return dict.fromkeys(self.parties, arrays)
        return {
            party: {name: array[self.held[batch, k]] for name, array in arrays.items()}
            for k, party in enumerate(self.parties)
        }
