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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import scipy
from scipy import linalg

from flwr_vertical.arrays import Array, Flags
from strategies.linear.families import Family

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

_THERE = 5e-3
"""Standard errors to the maximum at which a fit ends."""
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


class Evaluates(Protocol):
    """Evaluates the side of a score that labels do not tell; each evaluation costs rounds."""

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Return the sum of the means, and of each column times them; None out of reach."""


class Source(Evaluates, Protocol):
    """Answers what the fit of a likelihood asks for."""

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


class Ascent:
    """Newton's steps to a maximum, by a curvature that is predicted and then corrected (BFGS).

    `predict` gives the information without the penalty, of what was evaluated and where.

    Shapes: target, free, weight (1 + n_columns,): the labels' side of the score, what may move,
    and the penalty's second derivative.
    """

    def __init__(
        self,
        source: Evaluates,
        target: Array,
        free: Flags,
        weight: Array,
        predict: Callable[[Array, Array], Array],
    ) -> None:
        self._source, self._predict = source, predict
        self.target, self._free, self.weight = target, free, weight
        self.evaluations, self._begun = 0, False
        self.here = self.means = target  # Where sums of means were evaluated last, and these
        self.exact: Array | None = None  # The information, here or near, if it was asked for
        self._pairs: list[tuple[Array, Array]] = []

    def climb(
        self,
        trial: Array,
        may_go_on: Callable[[], bool],
        most_halvings: int = _MOST_HALVINGS,
        watch: Callable[[Array], Array] | None = None,
    ) -> Iterator[None]:
        """Go from one place to the next by `newton`, and stop at each.

        Shapes: trial, watch (1 + n_columns,): the first place; watch returns the ridge from there
        on, (n_columns,).
        """
        halvings = 0
        while True:
            means = self.means_at(trial)
            if means is None:
                halvings += 1
                if halvings > most_halvings or not may_go_on():
                    raise OutOfReachError(trial, self.here if self._begun else None)
                base = self.here if self._begun else np.r_[trial[0], np.zeros(len(trial) - 1)]
                trial = (base + trial) / 2.0
                continue
            if watch is not None:
                self.weight = 2.0 * np.append(0.0, watch(trial))
            if self._begun:
                step = trial - self.here
                back, along = self._score(trial, means) @ step, self.score @ step
                self.note(trial, means)
                if back < -_OVERSHOT * along and may_go_on():
                    # The maximum lies between.
                    trial = self.here + self.newton()[0]
                    continue
            self.place(trial, means)
            yield
            trial = self.here + self.newton()[0]

    def means_at(self, trial: Array) -> Array | None:
        """Have sums of means evaluated, (1 + n_columns,); None out of reach."""
        found = self._source.evaluate(float(trial[0]), trial[1:])
        self.evaluations += 1
        return None if found is None else np.r_[found]

    def note(self, trial: Array, means: Array) -> None:
        """Keep by how much the likelihood's score falls from here to a place."""
        if self._begun:
            step, change = trial - self.here, np.where(self._free, means - self.means, 0.0)
            if rises(step, change):
                self._pairs.append((step, change))

    def place(self, here: Array, means: Array) -> None:
        """Go to where sums of means were evaluated."""
        self.here, self.means, self._begun = here, means, True

    def replace(self, information: Array) -> None:
        """Start anew from the exact information, without the penalty."""
        self.exact, self._pairs = information, []

    @property
    def score(self) -> Array:
        """The score here, the penalty's included."""
        return self._score(self.here, self.means)

    def _score(self, here: Array, means: Array) -> Array:
        return np.asarray(np.where(self._free, self.target - means, 0.0) - self.weight * here)

    @property
    def information(self) -> Array:
        """What is known of it here, and the penalty's second derivative."""
        information, ridge = self.exact, np.diag(self.weight)
        if information is None:
            information = self._predict(self.here, self.means)
        pairs = ((step, change + ridge @ step) for step, change in self._pairs)
        return corrected(information + ridge, pairs)

    def newton(self) -> tuple[Array, float]:
        """Return a step to the maximum, and how far it is in standard errors."""
        free, score = self._free, self.score
        inner = self.information[np.ix_(free, free)]
        scale = np.asarray(1.0 / np.sqrt(np.diag(inner)))
        out = np.zeros(len(score))
        try:
            out[free] = scale * linalg.solve(
                inner * np.outer(scale, scale), scale * score[free], assume_a="pos"
            )
        except linalg.LinAlgError as error:  # no curvature is left: the data are separated
            raise OutOfReachError(self.here) from error
        return out, float(np.sqrt(max(float(score @ out), 0.0)))


def maximise(
    family: Family,
    moments: MeanMoments,
    source: Source,
    *,
    max_evaluations: int = 40,
    ridge: Array | None = None,
    start: MeanMaximum | None = None,
    watch: Callable[[Array], Array] | None = None,
) -> MeanMaximum:
    """Find the maximum of the likelihood, or of the likelihood less a ridge penalty.

    Shapes: ridge (n_columns,): what the square of each slope is multiplied by in the penalty.
    """
    ascent = _ascent(family, moments, source, ridge)
    if start is None:
        trial = _start(family, moments, ascent.weight[1:])
    else:
        trial = np.append(start.level, start.slopes)
        ascent.replace(start.information)
    stalled, best = 0, np.inf

    def may_go_on() -> bool:
        return ascent.evaluations < max_evaluations

    for _ in ascent.climb(trial, may_go_on, watch=watch):
        _, distance = ascent.newton()
        stalled = 0 if distance < best / 2.0 else stalled + 1
        best = min(best, distance)
        # Rounding of what is told keeps the fit from coming nearer.
        at_end = distance < _THERE or (distance < _NEAR and stalled > 1)
        if at_end or not may_go_on():
            break
    return _informed(ascent, source)


class Expansions:
    """Quadratics of the likelihood about one point after the other, for a penalty to shrink.

    Each takes an evaluation. The information is predicted, and corrected by what scores change by,
    until it is asked for. So the likelihood needs no maximum.
    """

    def __init__(self, family: Family, moments: MeanMoments, source: Source) -> None:
        self._family, self._moments, self._source = family, moments, source
        self._ascent = _ascent(family, moments, source, None)
        self._lost = False  # Whether what was evaluated last was out of reach

    def start(self, ridge: Array, least: float, most: int = _MOST_HALVINGS) -> MeanMaximum:
        """Expand about least squares with a ridge of at least `least`, by `most` evaluations."""
        here = _start(self._family, self._moments, 2.0 * np.maximum(ridge, least))
        for _ in range(min(most, _MOST_HALVINGS)):
            if (found := self.about(here, ridge)) is not None:
                return found
            here = np.append(here[0], here[1:] / 2.0)
        raise OutOfReachError(here)

    def about(self, here: Array, ridge: Array) -> MeanMaximum | None:
        """Expand about level and slopes; None if they are out of reach.

        Shapes: here (1 + n_columns,); ridge (n_columns,): see `maximise`.
        """
        means = self._ascent.means_at(here)
        self._lost = means is None
        if means is None:
            return None
        self._ascent.weight = 2.0 * np.append(0.0, ridge)
        self._ascent.note(here, means)
        self._ascent.place(here, means)
        return _quadratic(self._ascent, None)

    def inform(self) -> MeanMaximum:
        """Ask for the information where the mean was evaluated last."""
        return _informed(self._ascent, self._source)

    def finish(self, found: MeanMaximum) -> MeanMaximum:
        """Ask for the cumulant where `found` was expanded, unless it is known."""
        if found.whole:
            return found
        if self._lost:
            self._ascent.means_at(found.around)
        value = found.log_likelihood - self._source.cumulant()
        return replace(found, log_likelihood=value, whole=True)


def _ascent(family: Family, moments: MeanMoments, source: Source, ridge: Array | None) -> Ascent:
    target = np.r_[moments.labels, moments.with_labels]
    free = np.ones(len(target), dtype=bool)
    free[0] = moments.intercept
    weight = np.zeros(len(target)) if ridge is None else 2.0 * np.append(0.0, ridge)
    return Ascent(source, target, free, weight, partial(predicted_information, family, moments))


def _informed(ascent: Ascent, source: Source) -> MeanMaximum:
    information, cumulant = source.inform()
    ascent.replace(information)
    return _quadratic(ascent, cumulant)


def _quadratic(ascent: Ascent, cumulant: float | None) -> MeanMaximum:
    """Take Newton's step, by what is known of the information."""
    information = ascent.information - np.diag(ascent.weight)
    around, (change, distance) = ascent.here, ascent.newton()
    value = float(around @ ascent.target) - (cumulant or 0.0) + float(ascent.score @ change) / 2.0
    here = around + change
    # The score's step counts the penalty, which is no part of the likelihood.
    value += float(ascent.weight @ (here**2 - around**2)) / 2.0
    return MeanMaximum(
        float(here[0]), here[1:], information, value, ascent.evaluations, distance, around,
        ascent.exact is not None, cumulant is not None,
    )  # fmt: skip


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
