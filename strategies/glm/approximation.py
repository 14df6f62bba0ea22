"""The likelihood as a quadratic at its maximum, and what penalties select on it.

Maximum and information are all that selection needs (Wang and Leng, 2007): for normal labels the
quadratic is the likelihood itself, for others it is so near where it was expanded. Expanded about
the fit that BIC chooses, until this stays where it is, it has the fit of the likelihood itself.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy

from flwr_vertical.arrays import Array, Flags, Integers
from strategies.glm.penalties import CONCAVE, SELECTING, grid, lla_weights, penalty_values
from strategies.glm.quadratic import Quadratic, concave_fit, penalised_path

_NEAR = 3.0
"""Standard errors from where a likelihood is expanded within which BIC knows it well enough."""


@dataclass(frozen=True)
class Approximation:
    """A likelihood at its maximum."""

    n_rows: float  # Rows of the fit
    center: Array  # (n_columns,): what is subtracted from the columns here; 0 without an intercept
    # (n_columns,): what a penalty treats as the unit of each column; 0 for columns that do not
    # vary
    scale: Array
    # (1 + n_columns, 1 + n_columns): of intercept and coefficients, times the dispersion: ``[1, X
    # - center]'W[1, X - center]``
    information: Array
    # (1 + n_columns,): the maximum: the level at `center`, and coefficients per unit of the
    # columns
    estimate: Array
    # Variance of the labels' noise at the maximum, of families that have one
    noise: float | None = None
    # Whether the model has one; else the first row of `information` counts for nothing
    intercept: bool = True
    # (1 + n_columns, 1 + n_columns): as `information`, of the squares of weighted residuals, where
    # errors are robust
    middle: Array | None = None
    mean_weight: float = 1.0  # What the weights of normal labels were divided by

    @property
    def loss(self) -> Quadratic:
        """The mean loss of a row, of coefficients per `scale`, the level taking its best value."""
        inner = self.information[1:, 1:]
        if self.intercept:
            across = self.information[0, 1:]
            inner = inner - np.outer(across, across) / self.information[0, 0]
        per = np.divide(1.0, self.scale, out=np.zeros_like(self.scale), where=self.scale > 0.0)
        hessian = inner * np.outer(per, per) / self.n_rows
        return Quadratic(hessian, hessian @ (self.estimate[1:] * self.scale))

    def with_scale(self, scale: Array) -> "Approximation":
        """Return the same likelihood with other units for the penalty."""
        return replace(self, scale=scale)

    def with_weights(self, size: float) -> "Approximation":
        """Return the likelihood of rows that count so many times as much."""
        middle = None if self.middle is None else size**2 * self.middle
        return replace(self, information=size * self.information, middle=middle)

    def on_all_columns(self, kept: Integers, n_columns: int) -> "Approximation":
        """Return the same likelihood with columns without effect beside those that are `kept`."""
        at = np.concatenate([[0], 1 + kept])
        information = np.zeros((1 + n_columns, 1 + n_columns))
        information[np.ix_(at, at)] = self.information
        center, scale, estimate = np.zeros(n_columns), np.zeros(n_columns), np.zeros(1 + n_columns)
        center[kept], scale[kept], estimate[at] = self.center, self.scale, self.estimate
        return replace(self, center=center, scale=scale, information=information, estimate=estimate)

    def with_ridge(self, ridge: Array) -> "Approximation":
        """Return the likelihood less `ridge` times squared coefficients in units of `scale`."""
        ridge = ridge / self.mean_weight
        information = self.information + np.diag(np.append(0.0, 2.0 * ridge * self.scale**2))
        less = replace(self, information=information)
        right = self.loss.hessian @ (self.estimate[1:] * self.scale)
        scaled = Quadratic(less.loss.hessian, right).minimum()
        beta = np.divide(scaled, self.scale, out=np.zeros_like(scaled), where=self.scale > 0.0)
        estimate = np.append(self.levels(beta[:, None]), beta)
        noise = None if self.noise is None else self.noise_of(beta)
        return replace(less, estimate=estimate, noise=noise)

    def levels(self, beta: Array) -> Array:
        """Return the best level of each column of coefficients, shape (n_columns, n_fits)."""
        if not self.intercept:
            return np.zeros(beta.shape[1])
        gap = self.estimate[1:, None] - beta
        moved = self.information[0, 1:] @ gap / self.information[0, 0]
        return np.asarray(self.estimate[0] + moved)

    @property
    def working_variance(self) -> float:
        """Variance of a label about its expectation, on the scale of the linear predictor."""
        weight = self.information[0, 0]
        return float(self.n_rows / weight) if weight > 0.0 else 1.0

    def noise_of(self, beta: Array) -> float:
        """Return the noise variance that coefficients per unit of the columns leave."""
        if self.noise is None:
            return 1.0
        both = np.column_stack([beta, self.estimate[1:]]) * self.scale[:, None]
        here, least = self.loss.loss(both)
        return float(self.noise + 2.0 * max(here - least, 0.0))

    def in_units(
        self, center: Array, unit: Array, y_center: float = 0.0, y_unit: float = 1.0
    ) -> "Approximation":
        """Return the same likelihood in units ``center + unit * z``, z being those here."""
        size = np.concatenate([[1.0], unit])
        estimate = y_unit * self.estimate / size
        estimate[0] += y_center
        return replace(
            self,
            center=center + unit * self.center,
            scale=self.scale * unit,
            information=self.information * np.outer(size, size),
            estimate=estimate,
            noise=None if self.noise is None else y_unit**2 * self.noise,
            middle=None if self.middle is None else self.middle * np.outer(size, size),
        )

    def covariance(self, chosen: Integers, dispersion: float) -> Array | None:
        """Return the covariance of the intercept and the chosen coefficients.

        It is ``a(tau) (X_S' W X_S)^-1`` with ``W = diag psi''(eta)`` (Theorem 8 of Tang, Feng, Li
        and Wang): where signals are strong against lambda, the penalty is flat at the selected
        coefficients, as if the support had been known (Fan and Li, 2001). The lasso is nowhere
        flat: the same matrix describes the spread but not the bias. Neither accounts for the
        selection itself. With `middle` it is the sandwich of White (1982), statsmodels' ``HC0``.

        Shapes: chosen (n_chosen,): numbers of columns; the others are held at zero; returns (1 +
        n_chosen, 1 + n_chosen): none where the information is singular.
        """
        kept = np.concatenate([[0], 1 + chosen])
        inner = np.ix_(kept, kept)
        spread = dispersion if self.middle is None else 1.0
        at_center = _inverse(self.information[inner], spread, self.intercept)
        if at_center is not None and self.middle is not None:
            at_center = np.asarray(at_center @ self.middle[inner] @ at_center)
        if at_center is None or not self.intercept:
            return at_center
        # From the level at `center` to the level at zero.
        turn = np.eye(len(kept))
        turn[0, 1:] = -self.center[chosen]
        return np.asarray(turn @ at_center @ turn.T)


@dataclass(frozen=True)
class Selection:
    """Fits of all values of lambda, and which of them BIC prefers."""

    lambdas: Array  # (n_lambdas,): BIC up to a constant
    bic: Array  # (n_lambdas,): BIC up to a constant
    beta: Array  # (n_columns, n_lambdas): per unit of the columns
    intercepts: Array  # (n_lambdas,): BIC up to a constant
    selected: Integers  # (n_lambdas,): how many coefficients are not zero
    # (n_lambdas,): twice the log likelihood that each fit lacks to the maximum, by the quadratic,
    # in units of the dispersion
    lost: Array
    chosen: int
    violation: float  # Of the conditions of optimality of the chosen fit, in units of the loss


def select(
    at: Approximation,
    penalty: str,
    lambdas: Array | None,
    penalised: Flags,
    last: Selection | None = None,
    near: bool = False,
    ridge: Array | None = None,
) -> Selection:
    """Fit all values of lambda and choose one.

    BIC is that of the likelihood (of normal labels with their own noise variance: Wang, Li and
    Tsai, 2007), which the quadratic gives up to a constant. `last`: a choice before; kept are its
    lambda and, of several minima, the one that is `near`; or else the better one, or another
    lambda whose fit is near.

    Shapes: lambdas (n_lambdas,): values to fit; left out, those of `grid` from that which
    selects nothing down; penalised (n_columns,): false for columns that always
    stay; ridge (n_columns,): what squared coefficients in units of `scale` are multiplied by.
    """
    loss = ridged = at.loss
    if ridge is not None:
        ridged = replace(loss, hessian=loss.hessian + np.diag(2.0 * ridge / at.n_rows))
    if penalty not in SELECTING:
        lambdas = np.zeros(1)
    elif lambdas is None:
        # With as many columns as rows, fits of small values have no error left to choose by.
        ratio = 0.1 if len(at.scale) >= at.n_rows else 0.01
        lambdas = grid(max(loss.largest_lambda(penalised), 1e-300), ratio=ratio)
    scaled = penalised_path(ridged, lambdas, penalty, penalised)
    unit = np.where(at.scale > 0.0, at.scale, 1.0)
    if last is not None and penalty in CONCAVE:
        before, strength = last.beta[:, last.chosen] * unit, float(lambdas[last.chosen])
        minima = [scaled[:, last.chosen], concave_fit(loss, before, strength, penalty, penalised)]
        values = [
            float(loss.loss(b[:, None])[0] + penalty_values(b, strength, penalty) @ penalised)
            for b in minima
        ]
        scaled[:, last.chosen] = minima[1 if near else int(np.argmin(values))]
    scaled[at.scale == 0.0] = 0.0  # not rounding's
    beta = scaled / unit[:, None]
    selected = np.count_nonzero(beta, axis=0)
    lost = 2.0 * at.n_rows * (loss.loss(scaled) - loss.loss(loss.minimum()[:, None]))
    lost = np.maximum(lost, 0.0)
    worse = lost
    if at.noise is not None:
        worse = at.n_rows * np.log1p(lost / (at.n_rows * max(at.noise, 1e-300)))
    bic = worse + selected * np.log(at.n_rows)
    chosen = int(np.argmin(bic)) if last is None else last.chosen
    if last is not None and not near:
        step = scaled - (last.beta[:, last.chosen] * unit)[:, None]
        moved = at.n_rows * np.einsum("jf,jk,kf->f", step, loss.hessian, step)
        moved[chosen] = 0.0
        chosen = int(np.argmin(np.where(moved <= _NEAR**2, bic, np.inf)))
    best, strength = scaled[:, chosen], lambdas[chosen]
    tangent = lla_weights(best[:, None], np.array([strength]), penalty)[:, 0]
    return Selection(
        lambdas=lambdas,
        bic=bic,
        beta=beta,
        intercepts=at.levels(beta) - at.center @ beta,
        selected=selected,
        lost=lost,
        chosen=chosen,
        violation=ridged.violation(best, strength * tangent * penalised),
    )


def choose_ridge(at: Approximation, penalised: Flags) -> float:
    """Return the strength of a ridge that predicts best, as far as the likelihood tells.

    With normal labels generalised cross-validation, ``n RSS / (n - df)^2`` (Golub, Heath and Wahba,
    1979), with others the unbiased estimate of risk, deviance + 2 df (Craven and Wahba, 1979; Wood,
    2004), which the quadratic gives up to a constant; df is the trace of what maps labels to fits.

    Shapes: penalised (n_columns,): which columns have the ridge.
    """
    loss, n, used = at.loss, at.n_rows, at.scale > 0.0
    hessian, gradient = loss.hessian[np.ix_(used, used)], loss.gradient[used]
    inner = Quadratic(hessian, gradient)
    least = float(inner.loss(inner.minimum()[:, None])[0])

    def score(logarithm: float) -> float:
        ridge = np.diag(2.0 * np.exp(logarithm) / n * penalised[used])
        inverse = np.linalg.pinv(hessian + ridge, rcond=1e-12, hermitian=True)
        here = float(inner.loss((inverse @ gradient)[:, None])[0])
        lost, freedom = 2.0 * n * max(here - least, 0.0), float(np.trace(inverse @ hessian))
        if at.noise is None:
            return lost + 2.0 * freedom
        return float(np.log(n * at.noise + lost) - 2.0 * np.log(n - at.intercept - freedom))

    middle = np.log(n * max(float(np.diag(hessian).mean()), 1e-300) / 2.0)
    values = middle + np.linspace(-16.0, 10.0, 105)
    best = int(np.argmin([score(value) for value in values]))
    ends = values[max(best - 1, 0)], values[min(best + 1, len(values) - 1)]
    return float(np.exp(scipy.optimize.minimize_scalar(score, bounds=ends, method="bounded").x))


def _inverse(information: Array, dispersion: float, intercept: bool) -> Array | None:
    """Return the inverse of the information of intercept and coefficients; None if singular."""
    first = 0 if intercept else 1
    own = information[first:, first:]
    covariance = np.zeros_like(information)
    if not len(own):
        return covariance
    scale = np.sqrt(np.maximum(np.diag(own), 1e-300))
    scaled = own / np.outer(scale, scale)
    if np.linalg.eigvalsh(scaled)[0] < 1e-12:
        return None
    covariance[first:, first:] = dispersion * np.linalg.inv(scaled) / np.outer(scale, scale)
    return covariance
