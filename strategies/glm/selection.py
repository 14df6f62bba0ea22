"""Fits of all values of lambda on a quadratic, and which of them is chosen."""

from dataclasses import dataclass, replace

import numpy as np
import scipy

from flwr_vertical.arrays import Array, Flags, Integers
from strategies.glm.approximation import Approximation
from strategies.glm.penalties import CONCAVE, SELECTING, grid, lla_weights, penalty_values
from strategies.glm.quadratic import Quadratic, concave_fit, penalised_path

_NEAR = 3.0
"""Standard errors from where a likelihood is expanded within which BIC knows it well enough."""
_CHOICES = 8
"""How often BIC may choose another value of lambda; of two alike it would go on for ever."""


@dataclass(frozen=True)
class Selection:
    """Fits of all values of lambda, and which of them BIC prefers."""

    lambdas: Array  # (n_lambdas,)
    bic: Array  # (n_lambdas,): BIC up to a constant
    beta: Array  # (n_columns, n_lambdas): per unit of the columns
    intercepts: Array  # (n_lambdas,)
    selected: Integers  # (n_lambdas,): how many coefficients are not zero
    # (n_lambdas,): twice the log likelihood that each fit lacks to the maximum, by the quadratic,
    # in units of the dispersion
    lost: Array
    chosen: int
    violation: float  # Of the conditions of optimality of the chosen fit, in units of the loss


class PenalisedFits:
    """The fits of all values of lambda on one quadratic.

    Shapes: lambdas (n_lambdas,): values to fit; left out, those of `grid` from that which selects
    nothing down; penalised (n_columns,): false for columns that always stay; ridge (n_columns,):
    what squared coefficients in units of `scale` are multiplied by.
    """

    def __init__(
        self,
        at: Approximation,
        penalty: str,
        lambdas: Array | None,
        penalised: Flags,
        ridge: Array | None = None,
    ) -> None:
        self._at, self._penalty, self._penalised = at, penalty, penalised
        self._loss = self._ridged = at.loss
        if ridge is not None:
            hessian = self._loss.hessian + np.diag(2.0 * ridge / at.n_rows)
            self._ridged = replace(self._loss, hessian=hessian)
        if penalty not in SELECTING:
            lambdas = np.zeros(1)
        elif lambdas is None:
            # With as many columns as rows, fits of small values have no error left to choose by.
            ratio = 0.1 if len(at.scale) >= at.n_rows else 0.01
            lambdas = grid(max(self._loss.largest_lambda(penalised), 1e-300), ratio=ratio)
        self._lambdas = lambdas
        self._unit = np.where(at.scale > 0.0, at.scale, 1.0)
        scaled = penalised_path(self._ridged, lambdas, penalty, penalised)
        scaled[at.scale == 0.0] = 0.0  # not rounding's
        self._scaled = scaled  # (n_columns, n_lambdas): coefficients per `scale`

    def by_bic(self) -> Selection:
        """Choose the value that BIC prefers."""
        return self._selection(int(np.argmin(self._bic())))

    def by_bic_near(self, last: Selection) -> Selection:
        """Choose the value that BIC prefers among fits near that of a choice before, `last`.

        Of a concave penalty's two minima at that value, found from 0 and from the fit before, the
        one with the lower penalised loss is taken.
        """
        here = self._scaled[:, last.chosen].copy()
        there = self._from(last)
        strength, free = float(self._lambdas[last.chosen]), self._penalised
        values = [
            self._loss.loss(b[:, None])[0] + penalty_values(b, strength, self._penalty) @ free
            for b in (here, there)
        ]
        self._scaled[:, last.chosen] = (here, there)[int(np.argmin(values))]
        step = self._scaled - (last.beta[:, last.chosen] * self._unit)[:, None]
        moved = self._at.n_rows * np.einsum("jf,jk,kf->f", step, self._loss.hessian, step)
        moved[last.chosen] = 0.0
        return self._selection(int(np.argmin(np.where(moved <= _NEAR**2, self._bic(), np.inf))))

    def following(self, last: Selection) -> Selection:
        """Keep the value of a choice before and, of several minima, the one that is near it."""
        self._scaled[:, last.chosen] = self._from(last)
        return self._selection(last.chosen)

    def _from(self, last: Selection) -> Array:
        """Return the fit of the value chosen before, found from where it was."""
        if self._penalty not in CONCAVE:
            return self._scaled[:, last.chosen]
        before, strength = last.beta[:, last.chosen] * self._unit, self._lambdas[last.chosen]
        return concave_fit(self._loss, before, float(strength), self._penalty, self._penalised)

    def _lost(self) -> Array:
        best = self._loss.loss(self._loss.minimum()[:, None])
        return np.maximum(2.0 * self._at.n_rows * (self._loss.loss(self._scaled) - best), 0.0)

    def _bic(self) -> Array:
        """Return BIC up to a constant.

        It is that of the likelihood (of normal labels with their own noise variance: Wang, Li and
        Tsai, 2007), which the quadratic gives up to a constant.
        """
        at, lost = self._at, self._lost()
        if at.noise is not None:
            lost = at.n_rows * np.log1p(lost / (at.n_rows * max(at.noise, 1e-300)))
        return np.asarray(lost + np.count_nonzero(self._scaled, axis=0) * np.log(at.n_rows))

    def _selection(self, chosen: int) -> Selection:
        beta = self._scaled / self._unit[:, None]
        best, strength = self._scaled[:, chosen], self._lambdas[chosen]
        tangent = lla_weights(best[:, None], np.array([strength]), self._penalty)[:, 0]
        return Selection(
            lambdas=self._lambdas,
            bic=self._bic(),
            beta=beta,
            intercepts=self._at.levels(beta) - self._at.center @ beta,
            selected=np.count_nonzero(beta, axis=0),
            lost=self._lost(),
            chosen=chosen,
            violation=self._ridged.violation(best, strength * tangent * self._penalised),
        )


class Path:
    """The choice on one quadratic after the other, as a likelihood is expanded anew.

    With `ridge` one fit, whose strength generalised cross-validation chooses.
    """

    def __init__(
        self, penalty: str, lambdas: Array | None, penalised: Flags, ridge: bool = False
    ) -> None:
        self._penalty, self.lambdas, self.penalised = penalty, lambdas, penalised
        self._times, self._kept, self.ridge, self._strength = 0, False, ridge, 0.0
        self.found: Selection | None = None

    def select(self, at: Approximation, keep: bool | None = False) -> Selection:
        """Fit all values of lambda and choose one; after a few times that of the last time.

        `keep`: from now on, after one more choice among fits near the last one; None: begin anew.
        """
        if keep is None:
            self._kept, self.found = False, None
        first = bool(keep) and not self._kept
        self._kept |= first
        last = self.found if self._kept or self._times >= _CHOICES else None
        self._times += 1
        if self.ridge:
            if last is None:
                self._strength = choose_ridge(at, self.penalised)
            ridge = np.where(self.penalised, self._strength, 0.0)
            found = PenalisedFits(at, self._penalty, None, self.penalised, ridge).by_bic()
            self.found = replace(found, lambdas=np.array([self._strength * at.mean_weight]))
            return self.found
        fits = PenalisedFits(at, self._penalty, self.lambdas, self.penalised)
        if last is None:
            self.found = fits.by_bic()
        elif first:
            self.found = fits.by_bic_near(last)
        else:
            self.found = fits.following(last)
        self.lambdas = self.found.lambdas
        return self.found

    def choose(self, at: Approximation, keep: bool | None) -> Array:
        """Return the coefficients of the chosen value."""
        found = self.select(at, keep)
        return found.beta[:, found.chosen]


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
