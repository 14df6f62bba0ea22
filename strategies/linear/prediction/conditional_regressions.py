"""Regressions for every pattern of parties from a fitted joint normal model; pure numerics.

With mean mu and covariance Sigma, a row of which the columns o are observed is predicted as
``mu_y + B (x_o - mu_o)`` with ``B = Sigma_yo Sigma_oo^-1``. An error d of the estimates moves it by

    d mu_y - B d mu_o + (d Sigma_yo - B d Sigma_oo) Sigma_oo^-1 (x_o - mu_o),

so that with the estimates' covariance V (inverse of the observed information) its variance is on
average over rows ``g' V g + tr(Sigma_oo^-1 H V H')``, where g and H are the derivatives of the
first two and of the bracket. That is the leverage; no number of a row is needed for it.

Maximum likelihood understates the noise, since the estimates follow the rows of the fit: with n
complete rows and p columns by a share of ``(p + 1) / n``, which is the leverage over the noise. So
predictions take the noise plus the leverage; with missing blocks this holds to first order.

Where mean and covariance of the columns are taken as known (`Fit.by_em`), the prediction is
``intercept + beta' E[x | x_o]``, with variance ``tr(V E[(1, x^) (1, x^)'])`` on average.
"""

from collections.abc import Sequence

import numpy as np
from scipy import linalg

from flwr_vertical.arrays import Array, Flags, Indices
from strategies.linear.moments import CovarianceModel, Fit, Patterns
from strategies.linear.moments.fit import _information
from strategies.linear.prediction.regressions import Regressions, pattern_list


def joint_regressions(
    patterns: Patterns,
    model: CovarianceModel,
    fit: Fit,
    widths: Sequence[int],
    occurring: Flags | None = None,
) -> Regressions:
    """Return the label's regression on the columns of each set of parties.

    Parameters
    ----------
    patterns : Patterns
        The moments that the model was fitted to.
    model : CovarianceModel
        What was free in the covariance.
    fit : Fit
        The fitted model.
    widths : sequence of int
        Number of columns of each party, in the order of the columns.
    occurring : numpy.ndarray of shape (n, n_parties), bool, optional
        See `pattern_list`.

    Returns
    -------
    Regressions
        All parties first. If coefficients do not depend on the pattern, a single one.
    """
    present = pattern_list(len(widths), occurring)
    by_information = None if fit.by_em else _Leverage(patterns, model, fit)
    owner = np.repeat(np.arange(len(widths)), widths)
    n, p = len(present), len(owner)
    level, unseen, leverage = np.empty(n), np.empty(n), np.empty(n)
    coefficients, offsets = np.zeros((n, p)), np.zeros((n, len(widths)))
    mean, covariance = fit.mean, fit.covariance
    for i, parties in enumerate(present):
        o = np.flatnonzero(parties[owner])
        inner = covariance[np.ix_(o, o)]
        beta = np.linalg.solve(inner, covariance[o, -1])
        coefficients[i, o] = beta
        offsets[i] = np.bincount(owner, weights=coefficients[i] * mean[:-1], minlength=len(widths))
        level[i] = mean[-1]
        unseen[i] = covariance[-1, -1] - beta @ covariance[o, -1] - fit.noise
        if by_information is not None:
            leverage[i] = by_information(o, beta, inner)
        else:
            around = np.append(1.0, mean[:-1])
            told = covariance[:-1, o] @ np.linalg.solve(inner, covariance[o, :-1])
            leverage[i] = around @ fit.vcov @ around + np.sum(fit.vcov[1:, 1:] * told)
    found = Regressions(
        present,
        level,
        coefficients,
        offsets,
        np.maximum(unseen, 0.0),
        np.maximum(leverage, 0.0),
        fit.noise + float(leverage[0]),
        tuple(widths),
    )
    return found.compact()


class _Leverage:
    """Variance of a prediction through the estimates, by the observed information."""

    def __init__(self, patterns: Patterns, model: CovarianceModel, fit: Fit) -> None:
        parameters = model.nearest(fit.covariance)
        self._solve = _Solver(_information(patterns, model, fit.mean, parameters, True, fit.prior))
        self._directions = model.directions(parameters)

    def __call__(self, o: Indices, beta: Array, inner: Array) -> float:
        """Return the leverage of rows with the columns o; see the module."""
        p = len(self._directions) - 1
        # Derivatives with respect to (mean, parameters of the covariance).
        by_level = np.zeros(p + 1 + self._directions.shape[2])
        by_level[p], by_level[o] = 1.0, -beta
        by_slope = np.zeros((len(o), len(by_level)))
        by_slope[:, p + 1 :] = self._directions[o, -1] - np.einsum(
            "ijk,j->ik", self._directions[np.ix_(o, o)], beta
        )
        found = float(by_level @ self._solve(by_level))
        if len(o):
            spread = by_slope @ self._solve(by_slope.T)
            found += float(np.trace(np.linalg.solve(inner, spread)))
        return found


class _Solver:
    """Multiplies by the inverse of an information matrix, by the pseudo-inverse if it has none."""

    def __init__(self, information: Array) -> None:
        self._scale = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(information)), 1e-300))
        scaled = information * np.outer(self._scale, self._scale)
        self._inverse: Array | None = None
        try:
            self._factor = linalg.cho_factor(scaled)
        except linalg.LinAlgError:
            self._inverse = np.asarray(
                np.linalg.pinv(scaled, rcond=1e-12, hermitian=True), dtype=np.float64
            )

    def __call__(self, right: Array) -> Array:
        side = (right.T * self._scale).T
        if self._inverse is not None:
            solved = self._inverse @ side
        else:
            solved = linalg.cho_solve(self._factor, side)
        return np.asarray((solved.T * self._scale).T)
