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

Where mean and covariance of the columns are taken as known (`Fit.without_information`), the
prediction is ``intercept + beta' E[x | x_o]``, with variance ``tr(V E[(1, x^) (1, x^)'])`` on
average.
"""

from collections.abc import Sequence

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices
from strategies.linear.moments.covariances import CovarianceModel
from strategies.linear.moments.fit import Fit, Likelihood, inverse_information
from strategies.linear.moments.linear import dependent_columns
from strategies.linear.moments.patterns import Patterns
from strategies.linear.prediction.regressions import Regressions, pattern_list


def joint_regressions(
    patterns: Patterns,
    model: CovarianceModel,
    fit: Fit,
    widths: Sequence[int],
    occurring: Flags | None = None,
    parts: Array | None = None,
) -> Regressions:
    """Return the label's regression on the columns of each set of parties; see `pattern_list`.

    Shapes: parts (n_columns, 1 + n_fitted): of the parties' columns as those of the fit make them,
    see `moments.identifiable.made_of`; by default they are those of the fit.
    """
    present = pattern_list(len(widths), occurring)
    by_information = None if fit.without_information else _Leverage(patterns, model, fit)
    owner = np.repeat(np.arange(len(widths)), widths)
    n, p = len(present), len(owner)
    level, unseen, leverage = np.empty(n), np.empty(n), np.empty(n)
    coefficients, offsets = np.zeros((n, p)), np.zeros((n, len(widths)))
    mean, covariance = fit.mean, fit.covariance
    made = np.asarray(np.eye(p, 1 + p, 1) if parts is None else parts, dtype=np.float64)
    of_columns = made[:, 0] + made[:, 1:] @ mean[:-1]
    for i, parties in enumerate(present):
        o = _telling(np.flatnonzero(parties[owner]), made[:, 1:], covariance[:-1, :-1])
        own = made[o, 1:]
        along = own @ covariance[:-1]
        inner = along[:, :-1] @ own.T
        beta = np.asarray(np.linalg.solve(inner, along[:, -1]), dtype=np.float64)
        coefficients[i, o] = beta
        offsets[i] = np.bincount(owner, weights=coefficients[i] * of_columns, minlength=len(widths))
        level[i] = mean[-1]
        unseen[i] = covariance[-1, -1] - beta @ along[:, -1] - fit.noise
        if by_information is not None:
            leverage[i] = by_information(own, beta, inner)
        else:
            around = np.append(1.0, mean[:-1])
            told = along[:, :-1].T @ np.linalg.solve(inner, along[:, :-1])
            leverage[i] = around @ fit.vcov @ around + np.sum(fit.vcov[1:, 1:] * told)
    found = Regressions(
        present,
        level,
        coefficients,
        offsets,
        np.maximum(unseen, 0.0),
        np.maximum(leverage, 0.0),
        fit.noise + max(float(leverage[0]), 0.0),
        tuple(widths),
    )
    return found.compact()


def _telling(columns: Indices, parts: Array, covariance: Array) -> Indices:
    """Return columns of the fit, and those others that tell more than these do.

    Shapes: columns (n,): numbers of those at hand, ascending; parts (n_columns, n_fitted);
    covariance (n_fitted, n_fitted); returns (at most n,).
    """
    # A column comes after those that it is made of.
    fitted = np.isin(columns, (parts != 0.0).argmax(axis=0))
    if fitted.all():
        return columns
    own = parts[columns]
    spread = own @ covariance @ own.T
    return columns[fitted | ~dependent_columns(spread, np.diag(spread))]


class _Leverage:
    """Variance of a prediction through the estimates, by the observed information."""

    def __init__(self, patterns: Patterns, model: CovarianceModel, fit: Fit) -> None:
        parameters = model.nearest(fit.covariance)
        told = Likelihood(patterns, model, fit.prior).information(fit.mean, parameters, True)
        self._inverse = inverse_information(told)
        self._directions = model.directions(parameters)

    def __call__(self, own: Array, beta: Array, inner: Array) -> float:
        """Return the leverage of rows with some columns; see the module.

        Shapes: own (n_own, n_fitted): as what sums of those of the fit they are; beta (n_own,);
        inner (n_own, n_own): their covariance.
        """
        p = len(self._directions) - 1
        # Derivatives with respect to (mean, parameters of the covariance).
        by_level = np.zeros(p + 1 + self._directions.shape[2])
        by_level[p], by_level[:p] = 1.0, -beta @ own
        by_slope = np.zeros((len(own), len(by_level)))
        moved = np.einsum("ijk,j->ik", self._directions[:p, :p], beta @ own)
        by_slope[:, p + 1 :] = own @ (self._directions[:p, -1] - moved)
        found = float(by_level @ self._inverse @ by_level)
        if len(own):
            spread = by_slope @ self._inverse @ by_slope.T
            found += float(np.trace(np.linalg.solve(inner, spread)))
        return found


def conditional_regressions(
    mean: Array,
    covariance: Array,
    intercept: float,
    beta: Array,
    of_estimates: Array | None,
    noise: float,
    widths: Sequence[int],
    family: str = "gaussian",
) -> Regressions:
    """Return the regression on the columns of each set of parties.

    Shapes: mean, covariance (n_columns,): of the columns, in their units; of_estimates (1 +
    n_selected, 1 + n_selected): covariance of the intercept and the coefficients that are not
    zero; None if it is not known.
    """
    present = pattern_list(len(widths))
    owner = np.repeat(np.arange(len(widths)), widths)
    n, p = len(present), len(beta)
    chosen = np.flatnonzero(beta)
    coefficients, offsets = np.zeros((n, p)), np.zeros((n, len(widths)))
    unseen, leverage = np.zeros(n), np.full(n, np.nan)
    at_mean = np.append(1.0, mean[chosen])
    # What counts as zero must not depend on the units of the columns.
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    size = np.where(size > 0.0, size, 1.0)
    for i, parties in enumerate(present):
        o = np.flatnonzero(parties[owner])
        # Columns that determine each other, or do not vary, share what there is.
        units = np.outer(size[o], size[o])
        scaled = covariance[np.ix_(o, o)] / units
        inner = np.linalg.pinv(scaled, rcond=1e-10, hermitian=True) / units
        expected = np.eye(p)[:, o]
        absent = np.setdiff1d(np.arange(p), o)
        expected[absent] = covariance[np.ix_(absent, o)] @ inner
        coefficients[i, o] = beta @ expected
        offsets[i] = np.bincount(owner, weights=coefficients[i] * mean, minlength=len(widths))
        seen = expected @ covariance[np.ix_(o, o)] @ expected.T
        unseen[i] = max(float(beta @ (covariance - seen) @ beta), 0.0)
        if of_estimates is not None:
            inside = of_estimates[1:, 1:] * seen[np.ix_(chosen, chosen)]
            leverage[i] = max(float(at_mean @ of_estimates @ at_mean + inside.sum()), 0.0)
    return Regressions(
        present,
        np.full(n, intercept + float(mean @ beta)),
        coefficients,
        offsets,
        unseen,
        leverage,
        noise,
        tuple(widths),
        family,
    ).compact()
