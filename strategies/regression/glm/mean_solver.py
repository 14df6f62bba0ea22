"""Maximum likelihood of a generalised linear model from few evaluations of ``X' mu(eta)``.

The server has the columns' covariance and ``X'y`` exactly, and may ask for the means' side of the
score, ``X' mu``, at coefficients of its choice; each answer costs rounds. So the information is
predicted rather than asked for: were the columns normal, Stein's lemma would give ``X' W X`` from
the covariance alone. Quasi-Newton updates (BFGS) correct the prediction by what the scores show.
Near the maximum the exact information is asked for once and a step of Newton's method ends the fit.

The log likelihood is concave (canonical link). A step that goes too far shows by its score, which
then points back.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize

from strategies.regression.glm.families import Family

Array = npt.NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

_NEAR = 0.05
"""Standard errors to the maximum at which the exact information is asked for."""
_MOST_HALVINGS = 6


@dataclass(frozen=True)
class Moments:
    """What the labels and columns tell without means.

    Parameters
    ----------
    n_rows : int
    labels : float
        Sum of the labels.
    covariance : numpy.ndarray of shape (n_columns, n_columns)
        Of the columns, divisor `n_rows`.
    with_labels : numpy.ndarray of shape (n_columns,)
        Sums of each centred column times the labels.
    intercept : bool
        Whether the level is free, or 0.
    """

    n_rows: int
    labels: float
    covariance: Array
    with_labels: Array
    intercept: bool = True


@dataclass(frozen=True)
class Evaluation:
    """Sums at some coefficients.

    Parameters
    ----------
    total : float
        Of the mean.
    columns : numpy.ndarray of shape (n_columns,)
        Of each centred column times the mean.
    information : numpy.ndarray of shape (1 + n_columns, 1 + n_columns), optional
        Of 1 and the centred columns, weighted by the variance.
    cumulant : float, optional
        Sum of the cumulant.
    """

    total: float
    columns: Array
    information: Array | None = None
    cumulant: float | None = None


Evaluate = Callable[[float, Array, bool], Evaluation | None]


@dataclass(frozen=True)
class Maximum:
    """The fit.

    Parameters
    ----------
    level : float
        Linear predictor where all columns have their mean.
    slopes : numpy.ndarray of shape (n_columns,)
    information : numpy.ndarray of shape (1 + n_columns, 1 + n_columns)
        Of level and slopes.
    log_likelihood : float
        Without the labels' own term, at the maximum.
    evaluations : int
        How often sums were asked for.
    converged : bool
    """

    level: float
    slopes: Array
    information: Array
    log_likelihood: float
    evaluations: int
    converged: bool


class OutOfReachError(Exception):
    """The linear predictors grow beyond what can be evaluated.

    Parameters
    ----------
    slopes : numpy.ndarray of shape (n_columns,)
        The last that were tried.
    """

    def __init__(self, slopes: Array) -> None:
        super().__init__("linear predictors grow out of reach")
        self.slopes = slopes


def maximise(
    family: Family,
    moments: Moments,
    evaluate: Evaluate,
    *,
    tol: float = 2e-3,
    max_evaluations: int = 40,
) -> Maximum:
    """Find the maximum of the likelihood.

    Parameters
    ----------
    family : Family
        With canonical link.
    moments : Moments
        With positive definite covariance.
    evaluate : Callable
        Given level, slopes and whether information and cumulant are wanted, returns the sums, or
        None where they are out of reach.
    tol : float
        End when the maximum is so near, in standard errors; the last step of Newton's method then
        leaves its square.
    max_evaluations : int
        Most evaluations.

    Raises
    ------
    OutOfReachError
        If the way to the maximum leads out of reach.
    """
    target = np.r_[moments.labels, moments.with_labels]
    free = np.ones(len(target), dtype=bool)
    free[0] = moments.intercept
    here, score, curvature = None, target, _Curvature(family, moments)
    trial, full = _start(family, moments), False
    evaluations = halvings = 0
    last: Maximum | None = None
    while evaluations < max_evaluations:
        found = evaluate(float(trial[0]), trial[1:], full)
        evaluations += 1
        if found is None:
            halvings += 1
            if halvings > _MOST_HALVINGS:
                raise OutOfReachError(trial[1:])
            base = np.r_[trial[0], np.zeros(len(trial) - 1)] if here is None else here
            trial, full = (base + trial) / 2.0, False
            continue
        told = np.where(free, target - np.r_[found.total, found.columns], 0.0)
        if here is not None:
            step = trial - here
            curvature.note(step, score - told)
            if told @ step < -0.7 * (score @ step):  # much too far: the maximum lies between
                change, _ = curvature.newton(here, score, free)
                trial, full = here + change, False
                continue
        here, score = trial, told
        if found.information is not None and found.cumulant is not None:
            curvature.replace(found.information)
        change, distance = curvature.newton(here, score, free)
        if found.information is not None and found.cumulant is not None:
            # The gain of the last step, by the exact information.
            value = float(here @ target) - found.cumulant + float(score @ change) / 2.0
            last = Maximum(
                float(here[0] + change[0]),
                here[1:] + change[1:],
                found.information,
                value,
                evaluations,
                distance < tol,
            )
            if last.converged:
                return last
        trial, full = here + change, distance < _NEAR
    if last is None:
        raise OutOfReachError(here[1:] if here is not None else trial[1:])
    return last


class _Curvature:
    """The information: predicted or exact, corrected by the scores' differences."""

    def __init__(self, family: Family, moments: Moments) -> None:
        self._family, self._moments = family, moments
        self._exact: Array | None = None
        self._pairs: list[tuple[Array, Array]] = []

    def note(self, step: Array, change: Array) -> None:
        """Keep by how much the score changed over a step."""
        if step @ change > 1e-12 * np.linalg.norm(step) * np.linalg.norm(change):
            self._pairs.append((step, change))

    def replace(self, information: Array) -> None:
        """Start anew from the exact information."""
        self._exact, self._pairs = information, []

    def newton(self, here: Array, score: Array, free: npt.NDArray[np.bool_]) -> tuple[Array, float]:
        """Return a step to the maximum, and how far it is in standard errors."""
        information = self._exact
        if information is None:
            information = predicted_information(self._family, self._moments, here)
        for step, change in self._pairs:
            moved = information @ step
            information = (
                information
                - np.outer(moved, moved) / (step @ moved)
                + np.outer(change, change) / (step @ change)
            )
        inner = information[np.ix_(free, free)]
        scale = 1.0 / np.sqrt(np.diag(inner))
        out = np.zeros(len(here))
        out[free] = scale * linalg.solve(
            inner * np.outer(scale, scale), scale * score[free], assume_a="pos"
        )
        return out, float(np.sqrt(max(score @ out, 0.0)))


def predicted_information(family: Family, moments: Moments, here: Array) -> Array:
    """Return the information of level and slopes if the columns were normal.

    With ``eta = level + x' slopes`` and ``s = cov(x, eta)``, of a normal x: ``E[w x] = E[w'] s``
    and ``E[w x x'] = E[w] cov + E[w''] s s'`` (Stein, 1981).
    """
    covariance, slopes = moments.covariance, here[1:]
    along = covariance @ slopes
    variance = float(slopes @ along)
    spread = np.sqrt(variance)
    w = family.variance(here[0] + spread * _NODES)
    w = w * _WEIGHTS
    out = np.empty((len(here), len(here)))
    unit = along / max(spread, 1e-150)
    out[0, 0] = w.sum()
    out[0, 1:] = out[1:, 0] = (w @ _NODES) * unit
    out[1:, 1:] = w.sum() * covariance + (w @ (_NODES**2 - 1.0)) * np.outer(unit, unit)
    return np.asarray(moments.n_rows * out)


def _start(family: Family, moments: Moments) -> Array:
    """Least squares in the scale of the linear predictor (Brillinger, 1982).

    Of normal columns the least-squares slopes are those of any model with this linear predictor,
    but for a factor: the mean slope of the mean function.
    """
    mean = moments.labels / moments.n_rows
    slopes = np.linalg.solve(moments.covariance, moments.with_labels / moments.n_rows)
    variance = float(slopes @ moments.covariance @ slopes)
    level = family.link(mean) if moments.intercept else 0.0
    spread, factor = 0.0, 1.0 / float(family.variance(np.array([level]))[0])
    for _ in range(100):
        # Far from 0 the approximation says little, and the data may be separated.
        spread = min(factor * np.sqrt(variance), 3.0)
        if moments.intercept:
            level = _level(family, mean, spread)
        slope = float(_WEIGHTS @ family.variance(level + spread * _NODES))
        factor = 0.5 * factor + 0.5 / slope
    return np.r_[level, slopes * (spread / max(np.sqrt(variance), 1e-150))]


def _level(family: Family, mean: float, spread: float) -> float:
    def excess(level: float) -> float:
        return float(_WEIGHTS @ family.mean(level + spread * _NODES)) - mean

    centre = family.link(mean)
    reach = 2.0 + 0.6 * spread**2 + spread
    return float(optimize.brentq(excess, centre - reach, centre + reach))
