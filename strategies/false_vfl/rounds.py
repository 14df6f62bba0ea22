"""The rounds of FALSE-VFL as the server sees them: sums in, the rows that a party holds out."""

from typing import Any

import numpy as np
from torch import Tensor

from flwr_vertical import Federation
from flwr_vertical.arrays import AnyArray, Indices
from strategies.false_vfl.decoder_pass import (
    GRADIENT_LIMIT,
    MEAN_LIMIT,
    PRECISION_LIMIT,
    TERM_LIMIT,
)
from strategies.false_vfl.hardware import to_numpy
from strategies.false_vfl.server_training import ServerStep


class Rounds:
    """Messages of a run, by what they are for.

    Shapes: mask (n_samples, n_parties): true where a party lacks the sample.
    """

    def __init__(self, federation: Federation, mask: AnyArray, *, per_party: bool) -> None:
        self.federation = federation
        self.parties = list(federation.parties)
        self._held = ~mask
        self._per_party = per_party
        self.counts: Indices = self._held.sum(axis=1)

    @property
    def n_samples(self) -> int:
        """Number of aligned samples."""
        return len(self._held)

    def usable(self, agree: AnyArray) -> Indices:
        """Return the samples that take part.

        Shapes: agree (n_parties,): whether samples that this party alone holds may.
        """
        lone = (self.counts == 1)[:, None] & self._held & ~agree
        return np.flatnonzero((self.counts > 0) & ~lone.any(axis=1))

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
            held = self._held[batch, k]
            carried[f"{name} mean"] = to_numpy(in_mean)[held]
            carried[f"{name} precision"] = to_numpy(in_precision)[held]

    def log_terms(self, batch: Indices, mean: Tensor, log_sigma: Tensor, seed: int) -> AnyArray:
        """Have parties draw h; return the sum of their terms, shape (n_rows, n_draws)."""
        total = self.federation.sum(
            "log_terms",
            {"seed": seed},
            per_party=self._rows(batch, mean=mean, log_sigma=log_sigma),
            scale={"terms": TERM_LIMIT},
        )
        terms: AnyArray = total["terms"]
        return terms

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
        total = self.federation.sum(
            "score",
            {"seeds": seeds, "n_draws": n_draws},
            per_party=posterior,
            scale={"terms": TERM_LIMIT},
        )
        terms: AnyArray = total["terms"]
        return terms

    def _rows(self, batch: Indices, **values: Tensor) -> dict[str, dict[str, AnyArray]]:
        arrays = {name: to_numpy(value) for name, value in values.items()}
        if not self._per_party:
            return dict.fromkeys(self.parties, arrays)
        return {
            party: {name: array[self._held[batch, k]] for name, array in arrays.items()}
            for k, party in enumerate(self.parties)
        }
