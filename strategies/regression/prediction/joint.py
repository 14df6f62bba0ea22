"""Regressions for every pattern of parties from a fitted joint normal model; pure numerics.

With mean mu and covariance Sigma, a row of which the columns o are observed is predicted as
``mu_y + B (x_o - mu_o)`` with ``B = Sigma_yo Sigma_oo^-1``. An error d of the estimates moves it by

    d mu_y - B d mu_o + (d Sigma_yo - B d Sigma_oo) Sigma_oo^-1 (x_o - mu_o),

so that with the estimates' covariance V (inverse of the observed information) its variance is on
average over rows ``g' V g + tr(Sigma_oo^-1 H V H')``, where g and H are the derivatives of the
first two and of the bracket. That is the leverage; no number of a row is needed for it.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy import linalg

from strategies.regression.moments import CovarianceModel, Fit, Patterns
from strategies.regression.moments.fit import _information
from strategies.regression.prediction.regressions import Regressions

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MANY_PARTIES = 6
"""Up to so many parties every pattern has its regression."""


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
        Patterns to have with more than `MANY_PARTIES` parties; all, none, single parties and all
        but one are always among them.

    Returns
    -------
    Regressions
        All parties first. If coefficients do not depend on the pattern, a single one.
    """
    present = _patterns(len(widths), occurring)
    solve = _covariance_of_estimates(patterns, model, fit)
    directions = model.directions(model.nearest(fit.covariance))
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
        # Derivatives with respect to (mean, parameters of the covariance).
        by_level = np.zeros(p + 1 + directions.shape[2])
        by_level[p], by_level[o] = 1.0, -beta
        by_slope = np.zeros((len(o), len(by_level)))
        by_slope[:, p + 1 :] = directions[o, -1] - np.einsum(
            "ijk,j->ik", directions[np.ix_(o, o)], beta
        )
        leverage[i] = by_level @ solve(by_level)
        if len(o):
            spread = by_slope @ solve(by_slope.T)
            leverage[i] += float(np.trace(np.linalg.solve(inner, spread)))
    found = Regressions(
        present,
        level,
        coefficients,
        offsets,
        np.maximum(unseen, 0.0),
        np.maximum(leverage, 0.0),
        fit.noise,
        tuple(widths),
    )
    return found.compact()


def _patterns(n_parties: int, occurring: Flags | None) -> Flags:
    """List the patterns to have, all parties first, each once."""
    if n_parties <= MANY_PARTIES:
        every = np.array(list(product((True, False), repeat=n_parties)), dtype=bool)
        return every.reshape(-1, n_parties)
    alone = np.eye(n_parties, dtype=bool)
    always = [np.ones((1, n_parties), dtype=bool), alone, ~alone, np.zeros((1, n_parties), bool)]
    rows = np.vstack([*always, *([] if occurring is None else [occurring])])
    first = np.unique(rows, axis=0, return_index=True)[1]
    return np.asarray(rows[np.sort(first)])


def _covariance_of_estimates(patterns: Patterns, model: CovarianceModel, fit: Fit) -> "_Solver":
    parameters = model.nearest(fit.covariance)
    return _Solver(_information(patterns, model, fit.mean, parameters, observed=True))


class _Solver:
    """Multiplies by the inverse of an information matrix, by the pseudo-inverse if it has none."""

    def __init__(self, information: Array) -> None:
        self._scale = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(information)), 1e-300))
        scaled = information * np.outer(self._scale, self._scale)
        self._inverse: Array | None = None
        try:
            self._factor = linalg.cho_factor(scaled)
        except linalg.LinAlgError:
            self._inverse = np.linalg.pinv(scaled, rcond=1e-12, hermitian=True)

    def __call__(self, right: Array) -> Array:
        side = (right.T * self._scale).T
        if self._inverse is not None:
            solved = self._inverse @ side
        else:
            solved = linalg.cho_solve(self._factor, side)
        return np.asarray((solved.T * self._scale).T)
