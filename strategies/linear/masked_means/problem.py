"""A binomial or Poisson model as the server sees it: sums of means at chosen coefficients."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from flwr_vertical.arrays import AnyArray, Array, Flags, Indices
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.policy.defaults import vectors_of_products
from flwr_vertical.products import Moments as Opened
from strategies.linear.families import Family, check_labels
from strategies.linear.masked_means.columns import EvaluatedColumns
from strategies.linear.masked_means.evaluate import Bound, MaskedMeans, Placed
from strategies.linear.masked_means.fourier import (
    MOST_TERMS,
    Expansion,
    expand,
    expand_level,
    to_circle,
)
from strategies.linear.masked_means.residuals import ResidualSums
from strategies.linear.masked_means.solver import MeanMaximum, MeanMoments

REACH = {"binomial": 112.0, "poisson": 14.0}
"""Linear predictors farther from their centre are refused: the sums would need too many terms."""
RIDGE = 0.5
"""Of a slope without a maximum, on its square, the column in standard deviations: a normal prior of
standard deviation 1. What ``penalty="ridge"`` and scikit-learn put on all slopes by default."""
TOLERANCE = 1e-6
"""Largest error of a function, relative to the variance of the labels."""
_LEAST_RADIUS = 0.5
_CONVERGED = 0.1
_ROUNDING = 1e-3  # of a sum that may be at its bound
_FAR = 4.0
"""Means that sum up to more than so many times the labels are too far from the maximum."""


@dataclass(frozen=True)
class Beside:
    """What the server has beside the labels of the samples of a fit, all of shape (n,)."""

    weights: Array  # What each counts, above 0
    offset: Array  # What is added to each linear predictor
    weighted: bool = True  # Whether the weights differ

    @property
    def known(self) -> list[Array]:
        """Those of both that are vectors of the server beside the labels."""
        weights = [self.weights] if self.weighted else []
        return weights + ([self.offset] if self.offset.any() else [])

    @classmethod
    def nothing(cls, n: int) -> "Beside":
        """Return weights of 1, and no offset."""
        return cls(np.ones(n), np.zeros(n), weighted=False)


@dataclass(frozen=True)
class MeanFit:
    """A fitted model."""

    level: float  # Linear predictor where all columns have their mean
    # (n_columns,): coefficients, columns of all parties in the order of their names; 0 of a
    # constant column
    beta: Array
    mean: Array  # (n_columns,): of the columns, over the samples of the fit
    # (1 + n_columns, 1 + n_columns): of (level, beta): of 1 and the columns less their means; 0
    # for constant columns
    information: Array
    # (n_columns,): which columns are in the fit: not constant, told of by their party, and not
    # following from others
    varies: Flags
    follows: Flags  # (n_columns,): which are left out since they follow from others
    has_intercept: bool
    log_likelihood: float
    deviance: float
    evaluations: int  # How often sums of means were opened
    # Length of the last step of Newton's method, in standard errors; of a fit that was followed,
    # of the last step of what follows it
    distance: float
    # (n_columns,): what the square of each coefficient is multiplied by beside minus the log
    # likelihood
    ridge: Array
    # (n_columns,): columns that got a ridge since their coefficients would grow without end
    bounded: Flags
    notes: tuple[str, ...] = ()  # What a user should know of these
    # As `information`, of squared residuals in place of variances, where it was asked for
    middle: Array | None = None
    sums: dict[str, float] = field(default_factory=dict)  # Further sums that were asked for

    @property
    def converged(self) -> bool:
        """Whether the last step was so short that what it leaves does not matter."""
        return self.distance < _CONVERGED

    @property
    def intercept(self) -> float:
        """Linear predictor where all columns are 0; 0 if there is no intercept."""
        return float(self.level - self.mean @ self.beta) if self.has_intercept else 0.0

    @property
    def vcov(self) -> Array:
        """Covariance of (intercept, beta), 0 where nothing is estimated."""
        kept = np.flatnonzero(np.r_[self.has_intercept, self.varies])
        turn = np.eye(len(self.mean) + 1)
        if self.has_intercept:
            turn[0, 1:] = -self.mean
            inner = self.information
        else:  # about 0, not about the mean
            inner = _about(self.information, self.mean)
        inner = inner[np.ix_(kept, kept)]
        scale = 1.0 / np.sqrt(np.diag(inner))
        covariance = np.zeros_like(self.information)
        covariance[np.ix_(kept, kept)] = np.linalg.inv(inner * np.outer(scale, scale)) * np.outer(
            scale, scale
        )
        return np.asarray(turn @ covariance @ turn.T)


class MeanProblem(EvaluatedColumns):
    """The fit to labels y in units of columns' standard deviations, without constant columns.

    `opened`: moments over the samples of the fit, of labels times weights; `names`: of the columns;
    `penalised`: whether a penalty selects among these; others: see `EvaluatedColumns`.
    """

    def __init__(
        self,
        means: MaskedMeans,
        family: Family,
        y: Array,
        opened: Opened,
        names: list[str],
        intercept: bool,
        ridge: Array | float = 0.0,
        units: Array | None = None,
        beside: Beside | None = None,
        follows: Flags | None = None,
        penalised: bool = False,
    ) -> None:
        if family.name not in REACH:
            raise ConfigError(f"family {family.name!r} needs no masked means, its moments suffice")
        check_labels(family, y)
        n = len(y)
        # With as many columns as rows there is no maximum before a penalty has selected.
        self.wide = penalised and len(names) >= n
        ridge = np.maximum(ridge, RIDGE) if self.wide else ridge
        self.beside = beside or Beside.nothing(n)
        weights, total = self.beside.weights, float(self.beside.weights @ y)
        super().__init__(means, opened, n, intercept, ridge, units, follows)
        self.vectors, self._total = 0, 0.0
        self.of_products = vectors_of_products(len(names))
        self._last = 0.0, Placed(np.zeros(0, dtype=np.uint64), [], 0.0, 0.0)
        self.family, self._y, self._names = family, y, names
        with_labels = opened.with_vectors[0, :, 0] - self._mean * total * intercept
        self.bounded = np.zeros(len(self._kept), dtype=bool)
        with_labels = with_labels[self._kept] / self._scale
        if self.wide:
            self.bound(np.arange(len(self._kept)), RIDGE)
        self.moments = MeanMoments(
            float(weights.sum()), total, self._second, with_labels, intercept,
            float(np.average(self.beside.offset, weights=weights)),
        )  # fmt: skip

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Have the parties evaluate the mean; None where the predictors are out of reach."""
        self.evaluations += 1
        self._last = _, placed = self._place(level, slopes)
        self.vectors += 1  # Where nothing is opened, too
        try:
            (mean,), centre = self._expand([self.family.mean])
        except DataError:
            return None
        bound, (top, rows) = self._bounds[0], self._rows
        totals, sums = self.means.open_sums(placed, centre, mean, bound.over(top), rows)
        total, columns = top * float(totals[0]), top * sums[0]
        if total > (1.0 + _ROUNDING) * bound.total:
            return None
        self._total = total
        if not self._intercept:
            columns = columns + self._mean * total
        return total, columns[self._kept] / self._scale

    def inform(self) -> tuple[Array, float]:
        """Have the parties evaluate variance and cumulant where the mean was evaluated last."""
        # Of counts the cumulant is the mean, whose sum is known.
        functions: list[Callable[[Array], Array]] = [self.family.variance]
        if self.family.name == "binomial":
            functions.append(self._cumulant)
        (expansions, centre), (top, rows) = self._expand(functions), self._rows
        bounds = [bound.over(top) for bound in self._bounds[1:][: len(functions)]]
        self.vectors += len(functions) - 1 + self.of_products
        information, cumulant = self.means.open_information(
            self._last[1], centre, expansions, bounds, rows
        )
        information = top * information
        if not self._intercept:
            information = _about(information, self._mean)
        chosen, unit = np.r_[0, 1 + self._kept], np.r_[1.0, self._scale]
        return information[np.ix_(chosen, chosen)] / np.outer(unit, unit), (
            self._total if cumulant is None else top * cumulant + self._cumulant_left_out
        )

    def cumulant(self) -> float:
        """Have the parties evaluate the cumulant where the mean was evaluated last."""
        if self.family.name != "binomial":
            return self._total
        self.vectors += 1
        (expansion,), centre = self._expand([self._cumulant])
        bound, (top, rows) = self._bounds[2], self._rows
        totals, _ = self.means.open_sums(self._last[1], centre, expansion, bound.over(top), rows)
        return top * float(totals[0]) + self._cumulant_left_out

    def residuals(self, level: float, slopes: Array) -> ResidualSums:
        """Place linear predictors where sums of squared residuals are asked for."""
        self._last = level, placed = self._place(level, slopes)
        beside = self.beside
        return ResidualSums(
            self.means, self.family, self._y, beside.weights, beside.offset, placed, level
        )

    def bound(self, slopes: Indices, ridge: float) -> None:
        """Put a ridge on slopes that would grow without end."""
        self.bounded[slopes] = True
        self.ridge = np.where(self.bounded, np.maximum(self.ridge, ridge), self.ridge)

    def own(self, level: float, beta: Array) -> Array:
        """Return level and slopes of coefficients in the columns' units."""
        return np.append(level if self._intercept else 0.0, beta[self._kept] * self._scale)

    def named(self, slopes: Indices) -> list[str]:
        """Return the names of the columns of slopes."""
        return [self._names[self._kept[j]] for j in slopes]

    @property
    def labels(self) -> Array:
        """Those of the samples of the fit."""
        return self._y

    @property
    def null_deviance(self) -> float:
        """Deviance of the model without columns."""
        return null_deviance(self.family, self._y, self.beside, self._intercept)

    @property
    def _rows(self) -> tuple[float, Array | None]:
        """The largest weight, and weights over it, of shape (1, n); None where all are 1."""
        if not self.beside.weighted:
            return 1.0, None
        top = float(self.beside.weights.max())
        return top, self.beside.weights[None] / top

    @property
    def _is_halved(self) -> bool:
        """Whether the cumulant is opened less half of linear predictors, whose sum is known."""
        return self.family.name == "binomial" and not self.beside.weighted

    @property
    def _cumulant(self) -> Callable[[Array], Array]:
        """What is opened of the cumulant; halved it is even, and takes fewer terms."""
        return _even_cumulant if self._is_halved else self.family.cumulant

    @property
    def _cumulant_left_out(self) -> float:
        """The sum of what is not opened of it; columns are centred."""
        if not self._is_halved:
            return 0.0
        return (len(self._y) * self._last[0] + float(self.beside.offset.sum())) / 2.0

    def _place(self, level: float, slopes: Array) -> tuple[float, Placed]:
        """Put linear predictors on the circle, offsets included."""
        level, placed = super()._place(level, slopes)
        offset = self.beside.offset
        alpha = placed.alpha + to_circle(offset)
        low, high = placed.low + float(offset.min()), placed.high + float(offset.max())
        return level, replace(placed, alpha=alpha, low=low, high=high)

    def _expand(self, functions: list[Callable[[Array], Array]]) -> tuple[list[Expansion], float]:
        """Expand functions; and where from, in linear predictors less their level."""
        family, (level, placed) = self.family, self._last
        radius = max((placed.high - placed.low) / 2.0, _LEAST_RADIUS)
        if not radius <= REACH[family.name]:
            raise DataError("out of reach")
        low, high = level + placed.low, level + placed.high
        mean = self.moments.labels / self.moments.n_rows
        typical = float(family.variance(np.array([family.link(mean)]))[0])

        def unit(t: Array) -> Array:
            # Errors are relative to the variance where it is larger than usual.
            return np.maximum(family.variance(t), typical)

        about_zero, most_terms, middle = None, MOST_TERMS, level + placed.centre
        if self._is_halved:
            about_zero = expand_level(functions, max(-low, high, _LEAST_RADIUS), unit, TOLERANCE)
        if about_zero is not None:
            most_terms = about_zero[0].n_terms - 1

        def about(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
            return lambda t: function(middle + t)

        try:
            found = expand(
                [about(f) for f in functions],
                radius,
                TOLERANCE,
                about(unit),
                most_terms,
                constant=not self.beside.weighted,
            )
            return found, placed.centre
        except DataError:
            if about_zero is None:
                raise
            return about_zero, -level

    @property
    def _bounds(self) -> list[Bound]:
        """How large mean, variance and cumulant are where they are evaluated."""
        family, n, (level, placed) = self.family, self.moments.n_rows, self._last
        top = float(self.beside.weights.max())
        low, high = level + placed.low, level + placed.high
        ends = np.array([low, min(max(0.0, low), high), high])
        mean, variance, cumulant = (
            float(f(ends).max()) for f in (family.mean, family.variance, self._cumulant)
        )
        total = min(_FAR * self.moments.labels, n * mean)
        return [
            Bound(total, top * mean),
            Bound(min(total, n * variance), top * variance),
            Bound(n * cumulant, top * cumulant),
        ]

    def fit(self, found: MeanMaximum) -> MeanFit:
        """Return the fit in the columns' own units."""
        beta = self._raw(found.slopes)
        level = found.level if self._intercept else float(self._mean @ beta)
        weights, y = self.beside.weights, self._y
        own = float(weights @ self.family.own_term(y))
        value = own + float(weights @ (y * self.beside.offset)) + found.log_likelihood
        saturated = own + float(weights @ self.family.saturated(y))
        return MeanFit(
            level=level,
            beta=beta,
            mean=self._mean,
            information=self.in_own_units(found.information),
            varies=self._varies,
            follows=self.follows,
            has_intercept=self._intercept,
            log_likelihood=value,
            deviance=2.0 * (saturated - value),
            evaluations=found.evaluations,
            distance=found.distance,
            ridge=self._spread_out(self.ridge * self._scale**2),
            bounded=self._spread_out(self.bounded),
        )

    def in_own_units(self, information: Array) -> Array:
        """Return an information of `inform` in the columns' own units, about their means."""
        unit, chosen = np.r_[1.0, self._scale], np.r_[0, 1 + self._kept]
        out = np.zeros((len(self._mean) + 1, len(self._mean) + 1))
        out[np.ix_(chosen, chosen)] = information * np.outer(unit, unit)
        return out if self._intercept else _about(out, -self._mean)

    def _spread_out(self, values: AnyArray) -> AnyArray:
        """Return values of varying columns as such of all; shape (n_columns,)."""
        out = np.zeros(len(self._mean), dtype=values.dtype)
        out[self._kept] = values
        return out


def null_deviance(family: Family, y: Array, beside: Beside, intercept: bool) -> float:
    """Return the deviance of the model without columns."""
    weights, eta = beside.weights, beside.offset
    if intercept:
        eta = eta + family.null_level(y, weights, eta)
    return float(family.deviance(y[:, None], eta[:, None], weights[:, None])[0])


def _even_cumulant(t: Array) -> Array:
    """Return a logistic model's cumulant less half the linear predictor, whose sum is known."""
    return np.asarray(np.logaddexp(0.0, t) - t / 2.0)


def _about(information: Array, mean: Array) -> Array:
    """Return the information of 1 and the columns plus their means."""
    turn = np.eye(len(information))
    turn[0, 1:] = mean
    return np.asarray(turn.T @ information @ turn)
