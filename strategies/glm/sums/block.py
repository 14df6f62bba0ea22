"""The party half of sharing ADMM as numbers: one party's columns and its coefficients.

A `Block` knows no protocol: the same code runs at a party of a federation (`party`) and in one
process (`central`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Indices
from strategies.glm.penalties import lla_weights
from strategies.glm.sums.acceleration import RECENT
from strategies.glm.sums.lasso import descend, violation

_FAR = 1e4  # a squared violation so large says no more than that the fit is far from optimal


@dataclass(frozen=True)
class Request:
    """What the server asks of every party in one round."""

    fits: Indices  # (n_fits,): which values of lambda take a step
    gradient: Array  # (n_samples, n_fits): ``gamma + phi h`` of (4.4), times the number of samples
    curvature: Array  # (n_fits,): of the quadratic around the last coefficients
    # (n_reweighted,): fits whose LLA weights are made again from the last coefficients, before
    # the step
    reweighted: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # (n_checked,): fits whose last coefficients are tested for optimality
    checked: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # (n_samples, n_checked): ``psi'(eta) - y`` at their sum of fits
    residual: Array = field(default_factory=lambda: np.zeros((0, 0)))
    # (n_samples,): A vector to be projected on the party's columns, if any
    probe: Array = field(default_factory=lambda: np.zeros(0))
    precision: float = 1.0  # Unit of violations; in fixed point their squares would vanish without
    # (n_combined,): fits whose step starts from a combination of their last coefficients
    combined: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # (RECENT, n_combined): how these combine, the latest last
    combination: Array = field(default_factory=lambda: np.zeros((RECENT, 0)))


@dataclass
class Coefficients:
    """What a party keeps between rounds."""

    # beta, weights: (n_columns, n_lambdas): coefficients of the standardised columns and the LLA
    # weights ``alpha``
    beta: Array
    weights: Array
    # (RECENT, n_columns, n_lambdas): coefficients after the last rounds, the latest last
    recent: Array


class Block:
    """One party's columns over the samples of the fit.

    Shapes: z (n_samples, n_columns): standardised columns; strengths (n_lambdas,): values of
    lambda; penalised (n_columns,): false for columns that are never penalised.
    """

    def __init__(
        self,
        z: Array,
        strengths: Array,
        penalised: npt.NDArray[np.bool_],
        penalty: str,
        shape: float,
    ) -> None:
        self.z = z
        self.strengths = strengths
        self.penalised = penalised
        self.penalty = penalty
        self.shape = shape
        self.gram = z.T @ z / len(z)
        # Constant columns are zero after centring, and so are their coefficients.
        empty = np.flatnonzero(np.diag(self.gram) <= 1e-14)
        self.gram[empty, empty] = 1.0
        self._basis: Array | None = None

    def start(self) -> Coefficients:
        """Return zero coefficients and the weights that these have: a lasso's."""
        beta = np.zeros((self.z.shape[1], len(self.strengths)))
        recent = np.zeros((RECENT, *beta.shape))
        return Coefficients(beta, self._weights(beta, self.strengths), recent)

    def advance(self, kept: Coefficients, asked: Request) -> tuple[Coefficients, dict[str, Array]]:
        """Take one step of each fit."""
        beta, weights = kept.beta.copy(), kept.weights.copy()
        told: dict[str, Array] = {}
        if len(asked.checked):
            off = violation(
                self.z.T @ asked.residual / len(self.z),
                beta[:, asked.checked],
                self._penalty(weights, asked.checked),
            )
            told["violation"] = np.minimum(np.sum((off / asked.precision) ** 2, axis=0), _FAR)
        if len(asked.combined):
            last = kept.recent[:, :, asked.combined]
            beta[:, asked.combined] = np.einsum("mf,mjf->jf", asked.combination, last)
        if len(asked.reweighted):
            again = asked.reweighted
            weights[:, again] = self._weights(beta[:, again], self.strengths[again])
        if len(asked.fits):
            beta[:, asked.fits] = descend(
                self.gram,
                self.z.T @ asked.gradient / len(self.z),
                beta[:, asked.fits],
                asked.curvature,
                self._penalty(weights, asked.fits),
            )
        told["fit"] = self.z @ beta[:, asked.fits]
        strength = self._penalty(weights, asked.fits)
        told["penalty"] = np.sum(strength * np.abs(beta[:, asked.fits]), axis=0)
        if len(asked.checked):
            told["selected"] = np.count_nonzero(beta[:, asked.checked], axis=0).astype(np.uint32)
        if len(asked.probe):
            told["projection"] = self.project(asked.probe)
        return Coefficients(beta, weights, np.concatenate([kept.recent[1:], beta[None]])), told

    def project(self, vector: Array) -> Array:
        """Project a vector of shape (n_samples,) on the span of the columns."""
        if self._basis is None:
            values, vectors = np.linalg.eigh(self.gram)
            kept = values > 1e-9 * values[-1]
            self._basis = vectors[:, kept] / np.sqrt(values[kept] * len(self.z))
        inner = self._basis.T @ (self.z.T @ vector)
        return np.asarray(self.z @ (self._basis @ inner))

    def _weights(self, beta: Array, strengths: Array) -> Array:
        weights = lla_weights(beta, strengths, self.penalty, self.shape)
        weights[~self.penalised] = 0.0
        return weights

    def _penalty(self, weights: Array, fits: Indices) -> Array:
        return np.asarray(self.strengths[fits] * weights[:, fits])


def largest_correlation(z: Array, penalised: npt.NDArray[np.bool_], residual: Array) -> float:
    """Return the largest gradient of a penalised column: the lambda from which all are zero.

    Shapes: z (n_samples, n_columns); penalised (n_columns,); residual (n_samples,): label less its
    expectation without the penalised columns.
    """
    values = np.abs(z[:, penalised].T @ residual) / len(z)
    return float(values.max(initial=0.0))


def combined(terms: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Add the parties' terms, as a private sum does."""
    return {name: np.sum([term[name] for term in terms], axis=0) for name in terms[0]}
