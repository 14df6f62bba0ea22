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
    """What the server asks of every party in one round.

    Parameters
    ----------
    fits : numpy.ndarray of shape (n_fits,)
        Which values of lambda take a step.
    gradient : numpy.ndarray of shape (n_samples, n_fits)
        ``gamma + phi h`` of (4.4), times the number of samples.
    curvature : numpy.ndarray of shape (n_fits,)
        Of the quadratic around the last coefficients.
    reweighted : numpy.ndarray of shape (n_reweighted,)
        Fits whose LLA weights are made again from the last coefficients, before the step.
    checked : numpy.ndarray of shape (n_checked,)
        Fits whose last coefficients are tested for optimality.
    residual : numpy.ndarray of shape (n_samples, n_checked)
        ``psi'(eta) - y`` at their sum of fits.
    probe : numpy.ndarray of shape (n_samples,) or (0,)
        A vector to be projected on the party's columns, if any.
    precision : float
        Unit of violations; in fixed point their squares would vanish without.
    combined : numpy.ndarray of shape (n_combined,)
        Fits whose step starts from a combination of their last coefficients.
    combination : numpy.ndarray of shape (RECENT, n_combined)
        How these combine, the latest last.
    """

    fits: Indices
    gradient: Array
    curvature: Array
    reweighted: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    checked: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    residual: Array = field(default_factory=lambda: np.zeros((0, 0)))
    probe: Array = field(default_factory=lambda: np.zeros(0))
    precision: float = 1.0
    combined: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    combination: Array = field(default_factory=lambda: np.zeros((RECENT, 0)))


@dataclass
class Coefficients:
    """What a party keeps between rounds.

    Parameters
    ----------
    beta, weights : numpy.ndarray of shape (n_columns, n_lambdas)
        Coefficients of the standardised columns and the LLA weights ``alpha``.
    recent : numpy.ndarray of shape (RECENT, n_columns, n_lambdas)
        Coefficients after the last rounds, the latest last.
    """

    beta: Array
    weights: Array
    recent: Array


class Block:
    """One party's columns over the samples of the fit.

    Parameters
    ----------
    z : numpy.ndarray of shape (n_samples, n_columns)
        Standardised columns.
    strengths : numpy.ndarray of shape (n_lambdas,)
        Values of lambda.
    penalised : numpy.ndarray of shape (n_columns,)
        False for columns that are never penalised.
    penalty : str
        See `penalties`.
    shape : float
        The penalty's ``a``.
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
        """Take one step of each fit.

        Returns
        -------
        Coefficients
        dict
            Terms of private sums: ``fit`` of shape (n_samples, n_fits), the embeddings ``X_k
            beta_k``; ``penalty`` of shape (n_fits,), ``lambda |alpha o beta_k|_1``; where fits are
            checked, ``violation`` of shape (n_checked,), the squares of what optimality lacks, and
            ``selected`` of shape (n_checked,), how many coefficients are not zero; with a probe,
            ``projection`` of shape (n_samples,).
        """
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

    Parameters
    ----------
    z : numpy.ndarray of shape (n_samples, n_columns)
    penalised : numpy.ndarray of shape (n_columns,)
    residual : numpy.ndarray of shape (n_samples,)
        Label less its expectation without the penalised columns.
    """
    values = np.abs(z[:, penalised].T @ residual) / len(z)
    return float(values.max(initial=0.0))


def combined(terms: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Add the parties' terms, as a private sum does."""
    return {name: np.sum([term[name] for term in terms], axis=0) for name in terms[0]}
