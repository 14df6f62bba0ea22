"""The likelihood as a quadratic at its maximum.

Maximum and information are all that selection needs (Wang and Leng, 2007): for normal labels the
quadratic is the likelihood itself, for others it is so near where it was expanded. Expanded about
the fit that BIC chooses, until this stays where it is, it has the fit of the likelihood itself.
"""

from dataclasses import dataclass, replace

import numpy as np

from flwr_vertical.arrays import Array, Integers
from strategies.glm.quadratic import Quadratic


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
