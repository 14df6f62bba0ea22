"""The minimum of a sum of smooth hinges and a ridge, from few evaluations of its gradient.

The server has the second moments of the columns and their sums with the labels; each evaluation
of ``X' dL/d(eta)`` takes rounds. The sum is convex, its curvature that of least squares times a
share between 0 and 1, which is predicted as if decision values were normal, and corrected by what
gradients show (BFGS).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import linalg

from strategies.classifiers import hinge

Array = npt.NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

_OVERSHOT = 0.7
"""A step after which the gradient points back by more than this share went much too far."""
_MOST_HALVINGS = 2


@dataclass(frozen=True)
class LabelledMoments:
    """What is known without evaluations, labels being -1 and 1.

    Parameters
    ----------
    n_rows, labels : float
        Number of rows, and the sum of their labels.
    second : numpy.ndarray of shape (n_columns, n_columns)
        Mean products of the columns: covariances, where there is an intercept.
    with_labels : numpy.ndarray of shape (n_columns,)
        Sums of each column times the label.
    intercept : bool
        With one, columns are centred.
    """

    n_rows: float
    labels: float
    second: Array
    with_labels: Array
    intercept: bool = True


class Gradient(Protocol):
    """Evaluates the sum of the hinges' derivatives; each evaluation costs rounds."""

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Return the derivatives in level and slopes; None where values are out of reach."""


@dataclass(frozen=True)
class Minimum:
    """The fit.

    Parameters
    ----------
    level : float
        Decision value where all columns are 0 (their mean, with an intercept).
    slopes : numpy.ndarray of shape (n_columns,)
    evaluations : int
    distance : float
        Length of the last step, in units of decision values: the root of its mean square over
        the rows.
    """

    level: float
    slopes: Array
    evaluations: int
    distance: float


class OutOfReachError(Exception):
    """Decision values grow beyond what can be evaluated."""


def least_squares(moments: LabelledMoments, ridge: Array) -> tuple[float, Array]:
    """Return level and slopes of the least squares SVM: a ridge regression of the labels.

    Parameters
    ----------
    moments : LabelledMoments
    ridge : numpy.ndarray of shape (n_columns,)
        What the square of each slope is multiplied by.
    """
    n = moments.n_rows
    level = moments.labels / n if moments.intercept else 0.0
    inner = n * moments.second + np.diag(ridge)
    # Columns that do not vary have neither a product nor, it may be, a ridge.
    slopes = np.linalg.pinv(inner, rcond=1e-12, hermitian=True) @ moments.with_labels
    return float(level), np.where(np.diag(moments.second) > 0.0, slopes, 0.0)


def minimise(
    moments: LabelledMoments,
    ridge: Array,
    width: float,
    source: Gradient,
    *,
    tol: float = 1e-3,
    max_evaluations: int = 40,
) -> Minimum:
    """Find the minimum of the sum of hinges plus ``sum(ridge * slopes**2)``.

    Parameters
    ----------
    moments : LabelledMoments
    ridge : numpy.ndarray of shape (n_columns,)
    width : float
        Of the corner, see `hinge`.
    source : Gradient
    tol : float
        The step that comes after the last evaluation is shorter, in units of decision values.
    max_evaluations : int

    Raises
    ------
    OutOfReachError
        If the way to the minimum leads out of reach.
    """
    weight = 2.0 * np.append(0.0, ridge)
    curvature = _Curvature(moments, weight, width)
    trial = np.append(*least_squares(moments, ridge))
    here: Array | None = None
    gradient = np.zeros(len(trial))
    evaluations = halvings = 0
    while True:
        found = source.evaluate(float(trial[0]), trial[1:])
        evaluations += 1
        if found is None:
            halvings += 1
            if halvings > _MOST_HALVINGS or evaluations >= max_evaluations:
                raise OutOfReachError
            base = np.append(trial[0], np.zeros(len(trial) - 1)) if here is None else here
            trial = (base + trial) / 2.0
            continue
        told = np.append(*found) + weight * trial
        if not moments.intercept:
            told[0] = 0.0
        if here is not None:
            step = trial - here
            curvature.note(step, told - gradient)
            if told @ step > -_OVERSHOT * (gradient @ step) and evaluations < max_evaluations:
                trial = here + curvature.step(gradient)  # the minimum lies between
                continue
        here, gradient = trial, told
        change = curvature.step(gradient)
        distance = curvature.spread(change)
        if distance < tol or evaluations >= max_evaluations:
            last = here + change
            return Minimum(float(last[0]), last[1:], evaluations, distance)
        trial = here + change


class _Curvature:
    """The matrix of second derivatives: predicted, and corrected by gradients' differences."""

    def __init__(self, moments: LabelledMoments, weight: Array, width: float) -> None:
        n, p = moments.n_rows, len(moments.second)
        self._free = np.append(moments.intercept, np.diag(moments.second) + weight[1:] > 0.0)
        self._products = np.zeros((p + 1, p + 1))
        self._products[0, 0], self._products[1:, 1:] = n, n * moments.second
        self._n_rows = n
        start = np.append(*least_squares(moments, weight[1:] / 2.0))
        spread = np.sqrt(max(float(start[1:] @ moments.second @ start[1:]), 0.0))
        share = (1.0 + moments.labels / n) / 2.0
        at = start[0] + spread * _NODES
        both = share * hinge.curvature(at, width) + (1.0 - share) * hinge.curvature(-at, width)
        self._matrix = float(_WEIGHTS @ both) * self._products + np.diag(weight)

    def note(self, step: Array, change: Array) -> None:
        """Take in by how much the gradient changed over a step."""
        along = float(step @ change)
        if along > 1e-12 * np.linalg.norm(step) * np.linalg.norm(change):
            moved = self._matrix @ step
            self._matrix = (
                self._matrix
                - np.outer(moved, moved) / (step @ moved)
                + np.outer(change, change) / along
            )

    def step(self, gradient: Array) -> Array:
        """Return the step to the minimum of the quadratic."""
        kept = np.flatnonzero(self._free)
        out = np.zeros(len(gradient))
        inner = self._matrix[np.ix_(kept, kept)]
        scale = 1.0 / np.sqrt(np.diag(inner))
        scaled = inner * np.outer(scale, scale)
        out[kept] = -scale * linalg.solve(scaled, scale * gradient[kept], assume_a="sym")
        return out

    def spread(self, step: Array) -> float:
        """Return by how much a step changes decision values: root mean square over the rows."""
        square = float(step @ self._products @ step) / self._n_rows
        return float(np.sqrt(max(square, 0.0)))
