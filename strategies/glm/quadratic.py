"""Penalised quadratics: the whole path of penalties from a matrix and a vector, without a row.

The loss of least squares is ``b'H b / 2 - g'b`` with ``H = X'X / n`` and ``g = X'y / n``; that of
any likelihood is one near its maximum ``m``, with ``H`` the information of a row and ``g = H m``
(the least squares approximation of Wang and Leng, 2007). So a server that has second moments, or
maximum and information, computes all values of lambda by itself:

    minimise  b'H b / 2 - g'b + lambda sum_j w_j |b_j|.

scikit-learn's coordinate descent does the work, on ``R`` with ``R'R = H`` in place of a table. The
columns that it selects then have their equations solved, so that a path is exact to rounding.
Concave penalties go by local linear approximation (Zou and Li, 2008): a lasso, then lassos with
the tangents of the penalty as weights, until nothing changes (the loss falls with each).
"""

import warnings
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags
from strategies.glm.penalties import CONCAVE, SELECTING, lla_weights

_RANK = 1e-12  # of the largest eigenvalue: what is below comes from rounding
_GAP = 1e-10  # coordinate descent ends at this duality gap, relative to the loss at zero
_SWEEPS = 20_000
_MET = 1e-13  # conditions of optimality within this of the largest gradient are met
_TANGENTS, _STILL = 500, 1e-10  # tangents are drawn until coefficients stay, in relative terms


@dataclass(frozen=True)
class Quadratic:
    """The loss ``b'H b / 2 - g'b``."""

    # (n_columns, n_columns): ``H``, positive semi-definite; zero rows and columns stand for
    # columns without effect
    hessian: Array
    gradient: Array  # (n_columns,): ``g``, in the span of ``H``

    def minimum(self) -> Array:
        """Return the minimiser without a penalty, of least norm where there are several."""
        return _solved(self.hessian, self.gradient)

    def loss(self, beta: Array) -> Array:
        """Return the loss of each column of `beta`, array of shape (n_columns, n_fits)."""
        curved = np.einsum("jf,jk,kf->f", beta, self.hessian, beta)
        return np.asarray(0.5 * curved - self.gradient @ beta)

    def largest_lambda(self, penalised: Flags) -> float:
        """Return the lambda from which on no penalised column is selected, weights being 1."""
        rest = self._without(~penalised)
        return float(np.abs(rest.gradient).max(initial=0.0))

    def violation(self, beta: Array, penalty: Array) -> float:
        """Return how far the conditions of optimality are from being met, in units of `gradient`.

        Shapes: beta, penalty (n_columns,): coefficients, and ``lambda w``.
        """
        slope = self.hessian @ beta - self.gradient
        at_zero = np.maximum(np.abs(slope) - penalty, 0.0)
        off = np.where(beta != 0.0, np.abs(slope + penalty * np.sign(beta)), at_zero)
        return float(off.max(initial=0.0))

    def _without(self, free: Flags) -> "Quadratic":
        """Return the loss of the other columns when these take their best values."""
        rest = ~free
        if not free.any():
            return self
        inner = self.hessian[np.ix_(free, free)]
        across = self.hessian[np.ix_(free, rest)]
        # One solution for both: what of `g` and of the other columns these account for.
        taken = _solved(inner, np.column_stack([across, self.gradient[free]]))
        return Quadratic(
            self.hessian[np.ix_(rest, rest)] - across.T @ taken[:, :-1],
            self.gradient[rest] - across.T @ taken[:, -1],
        )


def penalised_path(loss: Quadratic, lambdas: Array, penalty: str, penalised: Flags) -> Array:
    """Minimise the loss under a penalty, for every value of lambda.

    Shapes: lambdas (n_lambdas,): at least 0, in any order; penalised (n_columns,): false for
    columns that are never penalised; returns (n_columns, n_lambdas).
    """
    if penalty not in SELECTING:
        return np.repeat(loss.minimum()[:, None], len(lambdas), axis=1)
    weights = penalised.astype(np.float64)
    beta = np.zeros((len(weights), len(lambdas)))
    start: Array | None = None
    for f in np.argsort(-lambdas, kind="stable"):
        # From the largest lambda down, each from the one before.
        beta[:, f] = start = _weighted_lasso(loss, lambdas[f] * weights, start)
    if penalty not in CONCAVE:
        return beta
    for f, strength in enumerate(lambdas):
        beta[:, f] = concave_fit(loss, beta[:, f], strength, penalty, penalised)
    return beta


def concave_fit(
    loss: Quadratic, beta: Array, strength: float, penalty: str, penalised: Flags
) -> Array:
    """Minimise the loss under a concave penalty, by tangents from coefficients on."""
    for _ in range(_TANGENTS):
        tangent = lla_weights(beta[:, None], np.array([strength]), penalty)[:, 0]
        last, beta = beta, _weighted_lasso(loss, strength * tangent * penalised, beta)
        if np.abs(beta - last).max(initial=0.0) <= _STILL * np.abs(beta).max(initial=0.0):
            break
    return beta


def _weighted_lasso(loss: Quadratic, penalty: Array, start: Array | None) -> Array:
    """Minimise ``loss(b) + sum penalty_j |b_j|``; columns of penalty 0 take what is best."""
    if start is not None:  # mostly the same columns stay selected, with the same signs
        near = _exact(loss, penalty, start)
        if loss.violation(near, penalty) <= _MET * np.abs(loss.gradient).max(initial=0.0):
            return near
    free = penalty == 0.0
    # A column without curvature has no slope, either.
    held = ~free & (np.diag(loss.hessian) > 0.0)
    beta = np.zeros(len(penalty))
    if held.any():
        rest = loss._without(free)
        inner = held[~free]
        scale = penalty[held]
        hessian = rest.hessian[np.ix_(inner, inner)] / np.outer(scale, scale)
        gradient = rest.gradient[inner] / scale
        first = None if start is None else start[held] * scale
        beta[held] = _lasso(hessian, gradient, first) / scale
    if free.any():
        own, across = loss.hessian[np.ix_(free, free)], loss.hessian[np.ix_(free, ~free)]
        beta[free] = _solved(own, loss.gradient[free] - across @ beta[~free])
    return _exact(loss, penalty, beta)


def _lasso(hessian: Array, gradient: Array, start: Array | None) -> Array:
    """Minimise ``b'H b / 2 - g'b + sum |b_j|`` by scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning  # parties import this module, too
    from sklearn.linear_model import lasso_path

    if np.abs(gradient).max() <= 1.0:
        return np.zeros(len(gradient))
    values, vectors = np.linalg.eigh(hessian)
    kept = values > _RANK * values[-1]
    roots = np.sqrt(values[kept])
    table = np.asfortranarray((vectors[:, kept] * roots).T)
    labels = vectors[:, kept].T @ gradient / roots
    unit = np.sqrt(len(table))  # scikit-learn's loss is a mean over rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `_exact` checks what it finds
        _, found, _ = lasso_path(
            unit * table,
            unit * labels,
            alphas=[1.0],
            precompute=False,
            coef_init=start,
            tol=_GAP,
            max_iter=_SWEEPS,
        )
    return np.asarray(found[:, 0])


def _exact(loss: Quadratic, penalty: Array, beta: Array) -> Array:
    """Solve the equations of the selected columns, if that brings the conditions nearer."""
    chosen = np.flatnonzero(beta)
    if not len(chosen):
        return beta
    signs = np.sign(beta[chosen])
    inner = loss.hessian[np.ix_(chosen, chosen)]
    exact = np.zeros_like(beta)
    exact[chosen] = _solved(inner, loss.gradient[chosen] - penalty[chosen] * signs)
    turned = (penalty[chosen] > 0.0) & (np.sign(exact[chosen]) != signs)
    if turned.any() or loss.violation(exact, penalty) > loss.violation(beta, penalty):
        return beta
    return exact


def _solved(matrix: Array, right: Array) -> Array:
    """Solve a positive semi-definite system, by least norm where it is singular."""
    size = np.sqrt(np.diag(matrix))
    size = np.where(size > 0.0, size, 1.0)
    scaled = matrix / np.outer(size, size)
    shaped = right / (size if right.ndim == 1 else size[:, None])
    found = np.linalg.lstsq(scaled, shaped, rcond=_RANK)[0]
    return np.asarray(found / (size if right.ndim == 1 else size[:, None]))
