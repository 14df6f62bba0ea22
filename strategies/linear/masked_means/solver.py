"""Maximum likelihood of a generalised linear model from few evaluations of ``X' mu(eta)``.

The server has the columns' covariance and ``X'y`` exactly, and may ask for the means' side of the
score, ``X' mu``, at coefficients of its choice; each answer costs rounds. So the information is
predicted rather than asked for: were the columns normal, Stein's lemma would give ``X' W X`` from
the covariance alone. Quasi-Newton updates (BFGS) correct the prediction by what the scores show.
Near the maximum the exact information is asked for once, and a step of Newton's method by it ends
the fit. A penalty that shrinks coefficients follows `Expansions` in place of a maximum.

The log likelihood is concave (canonical link). A step that goes too far shows by its score, which
then points back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy
from scipy import linalg

from flwr_vertical.arrays import Array, Flags
from strategies.linear.families import Family

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

_NEAR = 0.05
"""Standard errors to the maximum at which a fit that comes no nearer ends."""
_MOST_HALVINGS = 6
_OVERSHOT = 0.7
"""A step whose score points back by more than this share went much too far."""


@dataclass(frozen=True)
class MeanMoments:
    """What the labels and columns tell without means."""

    n_rows: float  # Or the sum of their weights
    labels: float  # Sum of the labels, times the weights if there are any
    covariance: Array  # (n_columns, n_columns): of the columns, divisor `n_rows`
    with_labels: Array  # (n_columns,): sums of each centred column times the labels
    intercept: bool = True  # Whether the level is free, or 0
    shift: float = 0.0  # Mean of what the server adds to linear predictors (its offset)


class Source(Protocol):
    """Answers what the fit asks for; each answer costs rounds."""

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Return the sum of the mean, and of each centred column times it; None out of reach."""

    def inform(self) -> tuple[Array, float]:
        """Return, where it was evaluated last, the information and the sum of the cumulant.

        The information is that of 1 and the centred columns, weighted by the variance, of shape
        (1 + n_columns, 1 + n_columns).
        """

    def cumulant(self) -> float:
        """Return, where it was evaluated last, the sum of the cumulant alone."""


@dataclass(frozen=True)
class MeanMaximum:
    """The fit."""

    level: float  # Linear predictor where all columns have their mean
    slopes: Array  # (n_columns,)
    # (1 + n_columns, 1 + n_columns): of level and slopes, before the last step of Newton's method
    information: Array
    log_likelihood: float  # Without the labels' own term, at the maximum
    evaluations: int  # How often sums of the mean were asked for
    distance: float  # Length of the last step of Newton's method, in standard errors
    around: Array  # (1 + n_columns,): level and slopes before that step
    exact: bool = True  # Whether the information was asked for, here or near, else it is predicted
    whole: bool = True  # Whether the log likelihood has the cumulant, which is to be subtracted


class OutOfReachError(Exception):
    """The linear predictors grow beyond what can be evaluated.

    Shapes: tried (1 + n_columns,): level and slopes, the last that were tried; evaluated (1 +
    n_columns,): the last that could be evaluated, if any.
    """

    def __init__(self, tried: Array, evaluated: Array | None = None) -> None:
        super().__init__("linear predictors grow out of reach")
        self.tried, self.evaluated = tried, evaluated


def corrected(matrix: Array, pairs: Iterable[tuple[Array, Array]]) -> Array:
    """Correct a matrix of second derivatives by steps and what gradients changed by (BFGS)."""
    for step, change in pairs:
        moved = matrix @ step
        matrix = (
            matrix
            - np.outer(moved, moved) / (step @ moved)
            + np.outer(change, change) / (step @ change)
        )
    return matrix


def rises(step: Array, change: Array) -> bool:
    """Tell whether a gradient rises along a step, by more than rounding."""
    return bool(step @ change > 1e-12 * np.linalg.norm(step) * np.linalg.norm(change))


def maximise(
    family: Family,
    moments: MeanMoments,
    source: Source,
    *,
    tol: float = 5e-3,
    max_evaluations: int = 40,
    ridge: Array | None = None,
    start: MeanMaximum | None = None,
    watch: Callable[[Array], Array] | None = None,
) -> MeanMaximum:
    """Find the maximum of the likelihood, or of the likelihood less a ridge penalty.

    Shapes: ridge (n_columns,): what the square of each slope is multiplied by in the penalty.
    """
    target, free, weight = _terms(moments, ridge)
    curvature = _Curvature(family, moments, weight)
    here, means, score = None, target, target
    if start is None:
        trial = _start(family, moments, weight[1:])
    else:
        trial = np.append(start.level, start.slopes)
        curvature.replace(start.information)
    evaluations = halvings = stalled = 0
    best = np.inf
    while True:
        found = source.evaluate(float(trial[0]), trial[1:])
        evaluations += 1
        if found is None:
            halvings += 1
            if halvings > _MOST_HALVINGS or evaluations >= max_evaluations:
                raise OutOfReachError(trial)
            base = np.r_[trial[0], np.zeros(len(trial) - 1)] if here is None else here
            trial = (base + trial) / 2.0
            continue
        sums = np.r_[found]
        if watch is not None:
            weight = 2.0 * np.append(0.0, watch(trial))
            curvature.ridge = np.diag(weight)
        told = np.where(free, target - sums, 0.0) - weight * trial
        if here is not None:
            step = trial - here
            score = np.where(free, target - means, 0.0) - weight * here
            curvature.note(step, np.where(free, sums - means, 0.0))
            if told @ step < -_OVERSHOT * (score @ step) and evaluations < max_evaluations:
                # The maximum lies between.
                trial = here + curvature.newton(here, means, score, free)[0]
                continue
        here, means, score = trial, sums, told
        change, distance = curvature.newton(here, means, score, free)
        stalled = 0 if distance < best / 2.0 else stalled + 1
        best = min(best, distance)
        # Rounding of what is told keeps the fit from coming nearer.
        if distance < tol or (distance < _NEAR and stalled > 1) or evaluations >= max_evaluations:
            break
        trial = here + change
    information, cumulant = source.inform()
    curvature.replace(information)
    end = _End(here, means, score, free, target, weight)
    return _quadratic(curvature, end, cumulant, evaluations)


def _terms(moments: MeanMoments, ridge: Array | None) -> tuple[Array, Flags, Array]:
    """Return the labels' side of the score, what is free, and the penalty's second derivative."""
    target = np.r_[moments.labels, moments.with_labels]
    free = np.ones(len(target), dtype=bool)
    free[0] = moments.intercept
    weight = np.zeros(len(target)) if ridge is None else 2.0 * np.append(0.0, ridge)
    return target, free, weight


@dataclass(frozen=True)
class _End:
    """Where the mean was evaluated last; all of shape (1 + n_columns,)."""

    here: Array  # Level and slopes
    means: Array  # Sums of the mean, and of each column times it
    score: Array
    free: Flags
    target: Array  # The labels' side of the score
    weight: Array  # The penalty's second derivative


def _quadratic(
    curvature: "_Curvature", end: _End, cumulant: float, evaluations: int
) -> MeanMaximum:
    """Take Newton's step, by what is known of the information."""
    information = curvature.information(end.here, end.means) - curvature.ridge
    change, distance = curvature.newton(end.here, end.means, end.score, end.free)
    value = float(end.here @ end.target) - cumulant + float(end.score @ change) / 2.0
    here = end.here + change
    # The score's step counts the penalty, which is no part of the likelihood.
    value += float(end.weight @ (here**2 - end.here**2)) / 2.0
    return MeanMaximum(
        float(here[0]), here[1:], information, value, evaluations, distance, end.here
    )


class Expansions:
    """Quadratics of the likelihood about one point after the other, for a penalty to shrink.

    Each takes an evaluation. The information is predicted, and corrected by what scores change by,
    until it is asked for. So the likelihood needs no maximum.
    """

    def __init__(self, family: Family, moments: MeanMoments, source: Source) -> None:
        self._family, self._moments, self._source = family, moments, source
        self._curvature = _Curvature(family, moments, np.zeros(1 + len(moments.with_labels)))
        self._end: _End | None = None
        self._exact = self._lost = False  # Whether what was evaluated last was out of reach

    def start(self, ridge: Array, least: float) -> MeanMaximum | None:
        """Expand about least squares with a ridge of at least `least`; None if out of reach."""
        here = _start(self._family, self._moments, 2.0 * np.maximum(ridge, least))
        for _ in range(_MOST_HALVINGS):
            if (found := self.about(here, ridge)) is not None:
                return found
            here = np.append(here[0], here[1:] / 2.0)
        return None

    def about(self, here: Array, ridge: Array) -> MeanMaximum | None:
        """Expand about level and slopes; None if they are out of reach.

        Shapes: here (1 + n_columns,); ridge (n_columns,): see `maximise`.
        """
        found = self._source.evaluate(float(here[0]), here[1:])
        self._lost = found is None
        if found is None:
            return None
        means, last = np.r_[found], self._end
        target, free, weight = _terms(self._moments, ridge)
        self._curvature.ridge = np.diag(weight)
        if last is not None:
            self._curvature.note(here - last.here, np.where(free, means - last.means, 0.0))
        score = np.where(free, target - means, 0.0) - weight * here
        self._end = _End(here, means, score, free, target, weight)
        return self._quadratic(None)

    def inform(self) -> MeanMaximum:
        """Ask for the information where the mean was evaluated last."""
        information, cumulant = self._source.inform()
        self._curvature.replace(information)
        self._exact = True
        return self._quadratic(cumulant)

    def finish(self, found: MeanMaximum) -> MeanMaximum:
        """Ask for the cumulant where `found` was expanded, unless it is known."""
        if found.whole:
            return found
        assert self._end is not None
        if self._lost:
            self._source.evaluate(float(found.around[0]), found.around[1:])
        return replace(
            found, log_likelihood=found.log_likelihood - self._source.cumulant(), whole=True
        )

    def _quadratic(self, cumulant: float | None) -> MeanMaximum:
        assert self._end is not None
        found = _quadratic(self._curvature, self._end, cumulant or 0.0, 1)
        return replace(found, exact=self._exact, whole=cumulant is not None)


class _Curvature:
    """The information without the penalty, corrected by the differences of scores.

    Shapes: ridge (1 + n_columns,): the penalty's second derivative.
    """

    def __init__(self, family: Family, moments: MeanMoments, ridge: Array) -> None:
        self._family, self._moments, self.ridge = family, moments, np.diag(ridge)
        self._exact: Array | None = None
        self._pairs: list[tuple[Array, Array]] = []

    def note(self, step: Array, change: Array) -> None:
        """Keep by how much the likelihood's score fell over a step."""
        if rises(step, change):
            self._pairs.append((step, change))

    def replace(self, information: Array) -> None:
        """Start anew from the exact information."""
        self._exact, self._pairs = information, []

    def information(self, here: Array, means: Array) -> Array:
        """Return what is known of it, and the penalty's second derivative."""
        information = self._exact
        if information is None:
            information = predicted_information(self._family, self._moments, here, means)
        pairs = ((step, change + self.ridge @ step) for step, change in self._pairs)
        return corrected(information + self.ridge, pairs)

    def newton(self, here: Array, means: Array, score: Array, free: Flags) -> tuple[Array, float]:
        """Return a step to the maximum, and how far it is in standard errors."""
        inner = self.information(here, means)[np.ix_(free, free)]
        scale = np.asarray(1.0 / np.sqrt(np.diag(inner)))
        out = np.zeros(len(here))
        try:
            out[free] = scale * linalg.solve(
                inner * np.outer(scale, scale), scale * score[free], assume_a="pos"
            )
        except linalg.LinAlgError as error:  # no curvature is left: the data are separated
            raise OutOfReachError(here) from error
        return out, float(np.sqrt(max(float(score @ out), 0.0)))


def predicted_information(family: Family, moments: MeanMoments, here: Array, means: Array) -> Array:
    """Return the information of level and slopes if the columns were normal.

    With ``eta = level + x' slopes`` and ``s = cov(x, eta)``, of a normal x: ``E[w x] = E[w'] s``
    and ``E[w x x'] = E[w] cov + E[w''] s s'`` (Stein, 1981). Of counts, whose variance is the mean,
    the sums of w and of x w are known; the columns' covariance, weighted by w, is what it was.

    Shapes: here (1 + n_columns,): level and slopes; means (1 + n_columns,): sums of the mean, and
    of each column times it.
    """
    covariance, slopes = moments.covariance, here[1:]
    if family.name == "poisson":
        known = np.zeros((len(here), len(here)))
        known[1:, 1:] = means[0] * covariance
        return np.asarray(known + np.outer(means, means) / means[0])
    along = covariance @ slopes
    variance = float(slopes @ along)
    spread = np.sqrt(variance)
    w = family.variance(here[0] + moments.shift + spread * _NODES)
    w = w * _WEIGHTS
    out = np.empty((len(here), len(here)))
    unit = along / max(spread, 1e-150)
    out[0, 0] = w.sum()
    out[0, 1:] = out[1:, 0] = (w @ _NODES) * unit
    out[1:, 1:] = w.sum() * covariance + (w @ (_NODES**2 - 1.0)) * np.outer(unit, unit)
    return np.asarray(moments.n_rows * out)


def _start(family: Family, moments: MeanMoments, ridge: Array) -> Array:
    """Least squares in the scale of the linear predictor (Brillinger, 1982).

    Of normal columns the least-squares slopes are those of any model with this linear predictor,
    but for a factor: the mean slope of the mean function.
    """
    mean = moments.labels / moments.n_rows
    level = family.link(mean) if moments.intercept else moments.shift
    weight = moments.n_rows * float(family.variance(np.array([level]))[0])
    penalised = moments.covariance + np.diag(ridge) / weight
    slopes = np.linalg.solve(penalised, moments.with_labels / moments.n_rows)
    variance = float(slopes @ moments.covariance @ slopes)
    spread, factor = 0.0, 1.0 / float(family.variance(np.array([level]))[0])
    for _ in range(100):
        # Far from 0 the approximation says little, and the data may be separated.
        spread = min(factor * np.sqrt(variance), 3.0)
        if moments.intercept:
            level = _level(family, mean, spread)
        slope = float(_WEIGHTS @ family.variance(level + spread * _NODES))
        factor = 0.5 * factor + 0.5 / slope
    slopes = slopes * (spread / max(np.sqrt(variance), 1e-150))
    return np.concatenate([[level - moments.shift], slopes])


def _level(family: Family, mean: float, spread: float) -> float:
    def excess(level: float) -> float:
        return float(_WEIGHTS @ family.mean(level + spread * _NODES)) - mean

    centre = family.link(mean)
    reach = 2.0 + 0.6 * spread**2 + spread
    return float(scipy.optimize.brentq(excess, centre - reach, centre + reach))
