"""Cox's partial likelihood over columns of several parties, nothing of a sample opened.

An evaluation opens, for each knot k of time, ``S_k`` and the sums ``x_k`` of the columns times
``E_k exp(eta)``; at the maximum the columns' products weighted by ``H0 exp(eta)`` are opened, too.
The score is ``sum over events of x_i - sum over k of lambda_k x_k`` (`risk_sets`); the information
is the weighted products less what lambda takes (`RiskSets.taken_by`). The server weighs each
sample's sines and cosines by ``E_k`` before it masks them, so parties see no time.

Where labelled rows were completed, what is not seen of them changes E_k, sums and errors
(`unseen`).
"""

from dataclasses import dataclass, replace

import numpy as np

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import DataError
from flwr_vertical.policy.defaults import vectors_of_products
from flwr_vertical.products import Moments
from strategies.cox.risk_sets import RiskSets
from strategies.cox.unseen import Completed, UnseenHazards
from strategies.linear.masked_means.columns import EvaluatedColumns
from strategies.linear.masked_means.evaluate import Bound, MaskedMeans, Placed
from strategies.linear.masked_means.fourier import Expansion, expand
from strategies.linear.masked_means.solver import Ascent, OutOfReachError

REACH = 10.0
"""Linear predictors farther from their centre are refused."""
_LEAST_RADIUS = 0.5
_FAR = 4.0
"""Sums that are so many times those of normal columns are too far from the maximum."""
_ROUNDING = 1e-3
_NEAR = 5e-3
"""Standard errors to the maximum at which the information is asked for: Newton's last step leaves
about the square."""
_GROWS = 0.1
"""Of a column in standard deviations: a last step that is longer has no end."""
_CONVERGED = 0.05
_MOST_EVALUATIONS = 30
_SHOWN = 1.0 / 3.0
"""Of the largest coefficient, per standard deviation: columns of smaller ones are not named."""
_TELLS = 0.8
"""Share of the variance of times from which columns seem to be made of them: linear predictors with
a standard deviation of 3 explain as much."""


@dataclass(frozen=True)
class CoxFit:
    """The maximum, in units of the columns as they are offered; 0 for those that do not vary."""

    beta: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns)
    log_likelihood: float
    sums: Array  # (n_knots,): the S_k, columns less their means over the samples of the fit
    residuals: Array | None  # (n_columns,): sum of Schoenfeld's residuals by rank of time
    evaluations: int
    distance: float  # Length of the last step, in standard errors

    @property
    def converged(self) -> bool:
        """Whether the last step was so short that what it leaves does not matter."""
        return self.distance < _CONVERGED


@dataclass(frozen=True)
class _At:
    """What was opened at some coefficients, in units of standard deviations."""

    slopes: Array  # (n_kept,)
    exposure: Array  # (n_knots, n): what samples count
    rates: Array  # That it was made with, see `UnseenHazards.exposure`
    evaluated: tuple[Array, Array]  # (n_knots,), (n_knots, n_columns): sums, as opened
    levels: Array  # (n_knots,)
    sums: Array  # (n_knots,): of hazards of samples at risk
    columns: Array  # (n_knots, n_kept)
    log_likelihood: float
    opened: tuple[Placed, Expansion, Bound]  # What it was opened by


class PartialLikelihood(EvaluatedColumns):
    """The likelihood in units of columns' standard deviations, without constant columns."""

    def __init__(
        self,
        means: MaskedMeans,
        risk: RiskSets,
        opened: Moments,
        vectors: Array,
        names: list[str],
        completed: Completed | None,
        follows: Flags | None,
    ) -> None:
        n = len(risk.event)
        super().__init__(means, opened, n, True, 0.0, None, follows)
        self._risk, self._names = risk, names
        self._unseen = None if completed is None else UnseenHazards(completed, risk)
        self._levels = np.ones(len(risk.exposure))
        centred = opened.with_vectors[0] - np.outer(self._mean, vectors.sum(axis=0))
        self._with = centred[self._kept] / self._scale[:, None]
        self._n_rows = n
        self._vectors, self._of_products = 0, vectors_of_products(len(names))
        self.telling = self._columns_telling(vectors)

    @property
    def n_knots(self) -> int:
        """How many vectors an evaluation takes."""
        return len(self._risk.exposure)

    def _columns_telling(self, vectors: Array) -> list[str]:
        """Name columns that tell events, expected events or ranks of times, but for a fifth.

        Ranks are those of events, among which columns are taken to vary as they do among all; so
        they say nothing where events are few.
        """
        share_of_events = self._risk.n_events / self._n_rows
        size = ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=0)
        size[2:] *= share_of_events
        told = size > 1e-9 * self._n_rows
        told[2:] &= share_of_events >= 0.5
        slopes = np.linalg.solve(self._second, self._with[:, told])
        share = np.einsum("jk,jk->k", slopes, self._with[:, told]) / (self._n_rows * size[told])
        weight = np.abs(slopes[:, share > _TELLS])
        shown = (weight > _SHOWN * weight.max(axis=0, initial=0.0)).any(axis=1)
        return [self._names[self._kept[j]] for j in np.flatnonzero(shown)]

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Have the parties evaluate the sums; None where linear predictors are out of reach."""
        self.evaluations += 1
        self._vectors -= self.n_knots
        _, placed = self._place(0.0, slopes)
        radius = max((placed.high - placed.low) / 2.0, _LEAST_RADIUS)
        if radius > REACH:
            return None
        least = float(np.exp(-placed.centre))  # of the mean sample
        largest = float(np.exp(radius))
        spread = float(slopes @ self._second @ slopes)
        typical = _FAR * self._n_rows * least * float(np.exp(min(spread / 2.0, 2.0 * REACH)))
        # Of mean 1: sums about late knots, over few samples, are as exact as others.
        exposure, rates = self._risk.exposure, np.zeros(0)
        if self._unseen is not None:
            exposure, rates = self._unseen.exposure(self._raw(slopes), self._levels)
        size = exposure.mean(axis=1)
        weights = exposure / size[:, None]
        bound = Bound(min(typical, self._n_rows * largest), largest, float(weights.max()))
        try:
            (found,) = expand(
                [np.exp], radius, unit=lambda t: np.maximum(np.exp(t), least), constant=False
            )
            total, columns = self.means.open_sums(placed, placed.centre, found, bound, weights)
        except DataError:  # of too many terms or digits
            return None
        if (total > (1.0 + _ROUNDING) * bound.total).any():
            return None
        unit = size * float(np.exp(placed.centre))
        evaluated = total * unit, columns * unit[:, None]
        sums, columns, gained = *evaluated, 0.0
        if self._unseen is None:
            levels = self._risk.levels(sums)
        else:
            at_risk = self._unseen.of(self._raw(slopes), *evaluated, rates)
            self._levels = levels = at_risk.levels
            sums, columns = at_risk.sums, at_risk.columns
            gained = at_risk.gained
        columns = columns[:, self._kept] / self._scale
        value = self._risk.log_likelihood(float(self._with[:, 0] @ slopes) + gained, sums)
        opened = placed, found, bound
        self._here = _At(slopes, exposure, rates, evaluated, levels, sums, columns, value, opened)
        return 0.0, levels @ columns

    def inform(self, here: _At) -> tuple[Array, Array]:
        """Have the parties open the information where the sums were evaluated last.

        Returns what scores fall by with coefficients, and what they vary by, each (n_kept, n_kept).
        """
        self._vectors -= self._of_products
        placed, expansion, bound = here.opened
        weights = here.levels @ here.exposure
        size = float(weights.mean())
        weights = weights[None] / size
        bound = replace(bound, heaviest=float(weights.max()))
        opened, _ = self.means.open_information(
            placed, placed.centre, [expansion], [bound], weights
        )
        products = opened[1:, 1:] * size * float(np.exp(placed.centre))
        taken = self._risk.taken_by(here.levels, here.columns)
        information = self._of_kept(products) - taken
        if self._unseen is None:
            return information, information
        beta = self._raw(here.slopes)
        by_model = here.levels, here.rates
        curvature = self._unseen.curvature(beta, *here.evaluated, products, *by_model)
        spread = self._unseen.spread(beta, *by_model)
        return self._of_kept(curvature), information + self._of_kept(spread)

    def _of_kept(self, products: Array) -> Array:
        at = np.ix_(self._kept, self._kept)
        return np.asarray(products[at] / np.outer(self._scale, self._scale))

    def _may_go_on(self) -> bool:
        """Whether parties allow an evaluation, and the information after it."""
        left = self._vectors - self._of_products
        return self.evaluations < _MOST_EVALUATIONS and left >= self.n_knots

    def maximise(self, vectors: int) -> CoxFit:
        """Find the maximum; `vectors`: with so many the parties multiply columns."""
        self._vectors = vectors
        n = 1 + len(self._kept)  # there is no level: it stays 0
        predicted, free = np.zeros((n, n)), np.arange(n) > 0
        predicted[1:, 1:] = self._risk.n_events * self._second
        target = np.append(0.0, self._with[:, 0])
        ascent = Ascent(self, target, free, np.zeros(n), lambda *_: predicted)
        # Without columns all lambda are 1, and nothing need be opened.
        ascent.place(np.zeros(n), np.append(0.0, self._with[:, 1]))
        first, _ = ascent.newton()
        if not self._may_go_on():
            raise self._refusal(first[1:])
        places = ascent.climb(first, self._may_go_on)
        while True:
            try:
                next(places)
            except OutOfReachError as error:
                raise self._refusal(error.tried[1:]) from error
            if ascent.newton()[1] >= _NEAR and self._may_go_on():
                continue
            curvature, varies = self.inform(self._here)
            ascent.replace(np.pad((curvature + curvature.T) / 2.0, ((1, 0), (1, 0))))
            step, distance = ascent.newton()
            if np.abs(step).max() > _GROWS and not self._may_go_on():
                raise self._refusal(step[1:])
            if distance < 2.0 * _NEAR or not self._may_go_on():
                gain = float(ascent.score @ step) / 2.0
                return self._fit(self._here, step[1:], gain, curvature, varies, distance)

    def _fit(
        self, here: _At, step: Array, gain: float, curvature: Array, varies: Array, distance: float
    ) -> CoxFit:
        risk, kept, back = self._risk, self._kept, np.linalg.inv(curvature)
        covariance = np.zeros((len(self._mean), len(self._mean)))
        unit = np.outer(self._scale, self._scale)
        covariance[np.ix_(kept, kept)] = back @ varies @ back.T / unit
        residuals = None
        if self._with.shape[1] > 2:
            by_rank = (risk.count * risk.ranks) @ risk.hats
            residuals = np.zeros(len(self._mean))
            at_risk = by_rank @ (here.columns / here.sums[:, None])
            events = self._with[:, 2] * np.abs(risk.rank).max()
            residuals[kept] = (events - at_risk) * self._scale
        return CoxFit(
            self._raw(here.slopes + step),
            covariance,
            here.log_likelihood + gain,
            here.sums * np.exp(here.columns @ step / here.sums),
            residuals,
            self.evaluations,
            distance,
        )

    def _refusal(self, slopes: Array) -> DataError:
        size = np.abs(slopes)
        kept = np.flatnonzero(size > _SHOWN * size.max())
        shown = ", ".join(self._names[self._kept[j]] for j in kept)
        why = "A level without events has none: leave it out or merge it. Transform"
        if self.telling:
            why = f"{told_times(self.telling)}. Else merge levels without events, transform"
        return DataError(
            f"no maximum of the likelihood was found in {self.evaluations} evaluations: "
            f"coefficients of {shown} go on growing, or linear predictors reach farther than "
            f"{REACH:g} from their middle. {why} columns with values far out, or have the parties "
            "allow more 'vectors' in their node config"
        )


def told_times(columns: list[str]) -> str:
    """Say that columns nearly tell times."""
    return (
        f"columns {columns} nearly tell the times or events: leave out what is made of them, or "
        "known only after them"
    )
