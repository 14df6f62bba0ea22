"""The minimum of a sum of smooth hinges and a ridge, from few evaluations of its gradient.

The server has the second moments of the columns and their sums with the labels; each evaluation
of ``X' dL/d(eta)`` takes rounds. So curvature is predicted, as if the columns of each class were
normal, with the mean of the class and what is left of the covariance, and corrected by what
gradients show (BFGS).

Of a margin m (the label, -1 or 1, times the decision value) the squared hinge is
``max(0, 1 - m)^2``. Here ``max(0, t)`` is the softplus ``w log(1 + exp(t / w))``, which is analytic
and differs from it by ``w log 2`` at most: a Fourier sum evaluates its derivative. The derivatives
of both squares have the same integral, so that a smooth density of margins about 1 hardly sees the
difference.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from flwr_vertical.arrays import Array
from strategies.linear.masked_means.solver import Ascent, Evaluates

_NODES = np.linspace(-5.0, 5.0, 401)  # the curvature has steep flanks
_WEIGHTS = np.exp(-0.5 * _NODES**2)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

_NEAR = 1e-3
"""Length of a step, in standard errors, that is the last."""
_MOST_HALVINGS = 1


def softplus(t: Array, width: float) -> Array:
    """Return a smooth ``max(0, t)``; shape as given."""
    return np.asarray(width * np.logaddexp(0.0, t / width))


def hinge_slope(margin: Array, width: float) -> Array:
    """Return the derivative of the loss in the margin; shape as given."""
    t = 1.0 - margin
    return np.asarray(-2.0 * softplus(t, width) * expit(t / width))


def hinge_curvature(margin: Array, width: float) -> Array:
    """Return the second derivative of the loss in the margin; shape as given."""
    t = 1.0 - margin
    rising = expit(t / width)
    falling = expit(-t / width)
    return np.asarray(2.0 * rising * (rising + softplus(t, width) * falling / width))


@dataclass(frozen=True)
class LabelledMoments:
    """What is known without evaluations, labels being -1 and 1."""

    n_rows: float  # Number of rows, and the sum of their labels
    labels: float  # Number of rows, and the sum of their labels
    # (n_columns, n_columns): mean products of the columns: covariances, where there is an
    # intercept
    second: Array
    sums: Array  # (n_columns,): sums of each column, and of each times the label
    with_labels: Array  # (n_columns,): sums of each column, and of each times the label
    intercept: bool = True  # With one, columns are centred


@dataclass(frozen=True)
class Minimum:
    """The fit."""

    level: float  # Decision value where all columns are 0 (their mean, with an intercept)
    slopes: Array  # (n_columns,)
    evaluations: int
    # Length of the last step, in units of decision values: the root of its mean square over the
    # rows
    distance: float


def least_squares(moments: LabelledMoments, ridge: Array) -> tuple[float, Array]:
    """Return level and slopes of the least squares SVM: `ridge` times squares of slopes."""
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
    source: Evaluates,
    *,
    start: Array | None = None,
    max_evaluations: int = 40,
) -> Minimum:
    """Find the minimum of the sum of hinges plus ``sum(ridge * slopes**2)``.

    Shapes: ridge (n_columns,); start (1 + n_columns,): level and slopes to begin at; by default
    those of least squares.
    """
    n, p = moments.n_rows, len(moments.second)
    products = np.zeros((p + 1, p + 1))
    products[0, 0], products[1:, 1:] = n, n * moments.second
    products[0, 1:] = products[1:, 0] = moments.sums

    def predict(here: Array, _: Array) -> Array:
        # Of normal columns a class may have no curvature; the loss has a little everywhere.
        return predicted_curvature(moments, here, width) + 1e-3 * products

    def spread(step: Array) -> float:
        """Return by how much a step changes decision values: root mean square over the rows."""
        return float(np.sqrt(max(float(step @ products @ step) / n, 0.0)))

    free = np.append(moments.intercept, np.diag(moments.second) + ridge > 0.0)
    trial = np.append(*least_squares(moments, ridge)) if start is None else start
    ascent = Ascent(source, np.zeros(p + 1), free, 2.0 * np.append(0.0, ridge), predict)

    def may_go_on() -> bool:
        return ascent.evaluations < max_evaluations

    for _ in ascent.climb(trial, may_go_on, _MOST_HALVINGS):
        step, _ = ascent.newton()
        if spread(step) < _NEAR or not may_go_on():
            break
    last = ascent.here + step
    return Minimum(float(last[0]), last[1:], ascent.evaluations, spread(step))


def predicted_curvature(moments: LabelledMoments, here: Array, width: float) -> Array:
    """Return the sum of the hinges' second derivatives if the columns of each class were normal.

    With ``eta = level + x' slopes`` and ``s = cov(x, eta)``, of a normal x:
    ``E[w x] = E[w] mean + E[w'] s`` and
    ``E[w x x'] = E[w] (cov + mean mean') + E[w'] (s mean' + mean s') + E[w''] s s'`` (Stein, 1981).

    Shapes: here (1 + n_columns,): level and slopes; returns (1 + n_columns, 1 + n_columns): of
    level and slopes.
    """
    n, slopes = moments.n_rows, here[1:]
    classes = []
    within = n * moments.second
    for sign in (-1.0, 1.0):
        size = (n + sign * moments.labels) / 2.0
        mean = (moments.sums + sign * moments.with_labels) / (2.0 * size)
        within = within - size * np.outer(mean, mean)
        classes.append((sign, size, mean))
    within = within / n
    along = within @ slopes
    spread = float(np.sqrt(max(float(slopes @ along), 0.0)))
    unit = along / max(spread, 1e-150)
    out = np.zeros((len(here), len(here)))
    for sign, size, mean in classes:
        eta = here[0] + float(mean @ slopes) + spread * _NODES
        w = size * _WEIGHTS * hinge_curvature(sign * eta, width)
        total, first, second = w.sum(), w @ _NODES, w @ (_NODES**2 - 1.0)
        cross = np.outer(unit, mean)
        out[0, 0] += total
        out[0, 1:] += total * mean + first * unit
        out[1:, 1:] += (
            total * (within + np.outer(mean, mean))
            + first * (cross + cross.T)
            + second * np.outer(unit, unit)
        )
    out[1:, 0] = out[0, 1:]
    return out
