"""Binomial and Poisson models by maximum likelihood, nothing of a sample opened.

=================  ===============================================================================
round              what the server learns
=================  ===============================================================================
open_products      moments of the columns and of columns with labels (`PrivateProducts`)
send_digits        scales of the columns and their largest values, as powers of two
place_fits         for each evaluation: how far the sum of fits reaches at most, to a grid
open_means         for each evaluation: the sum of the means and of each column times them; once
                   at the maximum: the columns' products weighted by the variance, and the sum of
                   the cumulant, which is what the log likelihood lacks
=================  ===============================================================================

An evaluation takes two rounds, the information one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.products import Moments as Opened
from flwr_vertical.products import PrivateProducts
from strategies.regression.glm.families import Family, check_labels
from strategies.regression.glm.masked_means import Bound, MaskedMeans, Placed
from strategies.regression.glm.mean_fourier import Expansion, expand
from strategies.regression.glm.mean_solver import (
    Maximum,
    Moments,
    OutOfReachError,
    maximise,
)

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_REACH = {"binomial": 50.0, "poisson": 14.0}
"""Linear predictors farther from their centre are refused: the sums would need too many terms."""
_LEAST_RADIUS = 0.5
_CONVERGED = 0.1
_LOST = 1e3
"""How many times larger the variance of a slope that grows without end is than at no effect."""
_SINGULAR = 1e-9
_FAR = 4.0
"""Means that sum up to more than so many times the labels are too far from the maximum."""
_NAMED = 3


@dataclass(frozen=True)
class MeanFit:
    """A fitted model.

    Parameters
    ----------
    level : float
        Linear predictor where all columns have their mean.
    beta : numpy.ndarray of shape (n_columns,)
        Coefficients, columns of all parties in the order of their names; 0 of a constant column.
    mean : numpy.ndarray of shape (n_columns,)
        Of the columns, over the samples of the fit.
    information : numpy.ndarray of shape (1 + n_columns, 1 + n_columns)
        Of (level, beta): of 1 and the columns less their means; 0 for constant columns.
    varies : numpy.ndarray of shape (n_columns,), bool
        Which columns are in the fit: not constant, and told of by their party.
    has_intercept : bool
    log_likelihood : float
    deviance : float
    evaluations : int
        How often sums of means were opened.
    distance : float
        Length of the last step of Newton's method, in standard errors.
    """

    level: float
    beta: Array
    mean: Array
    information: Array
    varies: npt.NDArray[np.bool_]
    has_intercept: bool
    log_likelihood: float
    deviance: float
    evaluations: int
    distance: float

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

    @property
    def std_error(self) -> Array:
        """Standard errors of (intercept, beta)."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.vcov), 0.0)))


def fit_mean_model(
    federation: Federation,
    products: PrivateProducts,
    family: Family,
    y: Array,
    group: Indices,
    columns: Mapping[str, Sequence[str]],
    *,
    intercept: bool = True,
    moments: Opened | None = None,
    max_evaluations: int = 40,
    ridge: float = 0.0,
    units: Array | None = None,
) -> MeanFit:
    """Fit a binomial or Poisson model to columns of several parties.

    The parties use `MaskedMeanSteps`, `PrivateProductSteps`, `GroupKeySteps` and `PairKeySteps`.

    Parameters
    ----------
    federation : Federation
        Of the run; two parties or more, sums ``masked`` or ``plain``.
    products : PrivateProducts
        Of the same run; the columns have been sent.
    family : Family
        Binomial or Poisson.
    y : numpy.ndarray of shape (n_samples,)
        Labels; those of samples that are not in the fit do not matter.
    group : numpy.ndarray of shape (n_samples,)
        0 for samples of the fit, which all parties hold, else -1.
    columns : mapping of str to sequence of str
        By party, the names of its columns, for errors.
    intercept : bool, default True
        Whether there is one.
    moments : flwr_vertical.products.Moments, optional
        Of this group with these labels, if they have been opened; else one round opens them.
    max_evaluations : int
        Most evaluations, of two rounds each.
    ridge : float
        What the sum of squared coefficients is multiplied by, beside minus the log likelihood.
    units : numpy.ndarray of shape (n_columns,), optional
        Units of the columns in which a ridge treats the coefficients; by default each column's
        standard deviation.

    Raises
    ------
    DataError
        If the labels are none of the family, columns follow from each other, or the maximum is out
        of reach: mostly since columns separate the labels.
    """
    if family.name not in _REACH:
        raise ConfigError(f"family {family.name!r} needs no masked means, its moments suffice")
    group = np.asarray(group, dtype=np.int64)
    labels = np.where(group >= 0, y, 0.0)
    own = labels[group >= 0]
    check_labels(family, own)
    names = [f"{party}:{name}" for party in federation.parties for name in columns[party]]
    if moments is None:
        moments = products.moments(group, 1, labels[:, None])
    means = MaskedMeans(federation, products.group_key)
    problem = _Problem(means, family, own, moments, names, intercept, ridge, units)
    means.send(group)
    try:
        found = maximise(
            family,
            problem.moments,
            problem,
            max_evaluations=max_evaluations,
            ridge=problem.ridge,
        )
    except OutOfReachError as error:
        raise problem.refusal(error.slopes) from error
    finally:
        means.close()
    if len(lost := problem.without_maximum(found)):
        raise problem.grows(lost)
    return problem.fit(found)


class _Problem:
    """The fit in units of the columns' standard deviations, without constant columns."""

    def __init__(
        self,
        means: MaskedMeans,
        family: Family,
        y: Array,
        opened: Opened,
        names: list[str],
        intercept: bool,
        ridge: float = 0.0,
        units: Array | None = None,
    ) -> None:
        self._means = means
        self._total = 0.0
        self._last = 0.0, Placed(np.zeros(0, dtype=np.uint64), [], 0.0, 0.0)
        self._family, self._y, self._names, self._intercept = family, y, names, intercept
        n = len(y)
        self._mean = opened.sums[0] / n
        second = opened.products[0] / n
        covariance = second - np.outer(self._mean, self._mean)
        spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        # What moments leave of a constant column is rounding.
        self._varies = spread > 1e-6 * np.sqrt(np.maximum(np.diag(second), 1e-300))
        self._varies &= ~opened.withheld[0]
        kept = np.flatnonzero(self._varies)
        if not len(kept):
            raise DataError("no column of any party varies over the samples of the fit")
        self._kept, self._scale = kept, spread[kept]
        with_labels = opened.with_vectors[0, :, 0] - self._mean * y.sum() * intercept
        about = covariance if intercept else second
        unit = np.outer(self._scale, self._scale)
        self.moments = Moments(
            n,
            float(y.sum()),
            about[np.ix_(kept, kept)] / unit,
            with_labels[kept] / self._scale,
            intercept,
        )
        self.ridge = np.full(len(kept), ridge)
        if units is not None:
            self.ridge *= (units[kept] / self._scale) ** 2
        if not ridge:
            self._check_singular(covariance[np.ix_(kept, kept)] / unit)

    def _check_singular(self, correlation: Array) -> None:
        values, vectors = np.linalg.eigh(correlation)
        if values[0] < _SINGULAR:
            involved = np.flatnonzero(np.abs(vectors[:, 0]) > 1e-3)
            shown = ", ".join(self._names[self._kept[j]] for j in involved)
            raise DataError(
                f"columns follow from each other over the samples of the fit ({shown}); leave one "
                "of them out"
            )

    def evaluate(self, level: float, slopes: Array) -> tuple[float, Array] | None:
        """Have the parties evaluate the mean; None where the predictors are out of reach."""
        beta = self._raw(slopes)
        if not self._intercept:  # the parties centre their columns
            level = float(self._mean @ beta)
        placed = self._means.place(beta)
        self._last = level, placed
        try:
            (mean,) = self._expand([self._family.mean])
        except DataError:
            return None
        bound = self._bounds[0]
        total, columns = self._means.open_mean(placed, placed.centre, mean, bound)
        if total > bound.total:
            return None
        self._total = total
        if not self._intercept:
            columns = columns + self._mean * total
        return total, columns[self._kept] / self._scale

    def inform(self) -> tuple[Array, float]:
        """Have the parties evaluate variance and cumulant where the mean was evaluated last."""
        family, (_, placed) = self._family, self._last
        # Of counts the cumulant is the mean, whose sum is known.
        functions: list[Callable[[Array], Array]] = [family.variance]
        if family.name == "binomial":
            functions.append(family.cumulant)
        expansions, bounds = self._expand(functions), self._bounds[1:][: len(functions)]
        information, cumulant = self._means.open_information(
            placed, placed.centre, expansions, bounds
        )
        if not self._intercept:
            information = _about(information, self._mean)
        chosen, unit = np.r_[0, 1 + self._kept], np.r_[1.0, self._scale]
        return information[np.ix_(chosen, chosen)] / np.outer(unit, unit), (
            self._total if cumulant is None else cumulant
        )

    def _raw(self, slopes: Array) -> Array:
        beta = np.zeros(len(self._mean))
        beta[self._kept] = slopes / self._scale
        return beta

    def _expand(self, functions: list[Callable[[Array], Array]]) -> list[Expansion]:
        family, (level, placed) = self._family, self._last
        radius = max((placed.high - placed.low) / 2.0, _LEAST_RADIUS)
        if not radius <= _REACH[family.name]:
            raise DataError("out of reach")
        middle = level + placed.centre
        typical = float(family.variance(np.array([family.link(float(self._y.mean()))]))[0])

        def unit(t: Array) -> Array:
            # Errors are relative to the variance where it is larger than usual.
            return np.maximum(family.variance(middle + t), typical)

        def about(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
            return lambda t: function(middle + t)

        return expand([about(f) for f in functions], radius, unit=unit)

    @property
    def _bounds(self) -> list[Bound]:
        """How large mean, variance and cumulant are where they are evaluated."""
        family, n, (level, placed) = self._family, len(self._y), self._last
        low, high = level + placed.low, level + placed.high
        ends = np.array([low, min(max(0.0, low), high), high])
        mean, variance, cumulant = (
            float(f(ends).max()) for f in (family.mean, family.variance, family.cumulant)
        )
        total = min(_FAR * float(self._y.sum()), n * mean)
        return [
            Bound(total, mean),
            Bound(min(total, n * variance), variance),
            Bound(n * cumulant, cumulant),
        ]

    def refusal(self, slopes: Array) -> DataError:
        """Say why there is no maximum within reach."""
        largest = np.argsort(-np.abs(slopes))[:_NAMED]
        if self._family.name == "binomial":
            return self.grows(largest)
        shown = self._shown(largest)
        return DataError(
            f"linear predictors spread over more than {2 * _REACH[self._family.name]:g} units, "
            f"where counts cannot be evaluated; the largest coefficients are those of {shown}. "
            "Transform columns with values far out (log, winsorise), or use exchange='sums'"
        )

    def without_maximum(self, found: Maximum) -> Indices:
        """Return which slopes grow without end though all predictors are within reach.

        One value of a column with labels of one kind alone does so: what information is left falls
        faster than the estimate grows, so that its error is larger than itself (Hauck and Donner,
        1977), and far larger than at no effect.
        """
        if self.ridge.any():
            return np.zeros(0, dtype=np.int64)  # a ridge keeps all slopes finite
        free = slice(None) if self._intercept else slice(1, None)
        inner = found.information[free, free]
        scale = 1.0 / np.sqrt(np.diag(inner))
        inverse = np.linalg.inv(inner * np.outer(scale, scale)) * np.outer(scale, scale)
        variance = np.diag(inverse)[-len(found.slopes) :]
        moments = self.moments
        null = self._family.variance(np.array([self._family.link(float(self._y.mean()))]))[0]
        at_none = np.diag(np.linalg.inv(moments.covariance)) / (moments.n_rows * null)
        lost = (variance > _LOST * at_none) & (found.slopes**2 < variance)
        return np.flatnonzero(lost)

    def grows(self, slopes: Indices) -> DataError:
        """Say that estimates grow without end."""
        kind = "labels 0 and 1" if self._family.name == "binomial" else "labels 0 and others"
        return DataError(
            f"perfect separation: the columns tell the {kind} apart (almost) without error, so "
            "that the estimates grow without end; the largest are those of "
            f"{self._shown(slopes)}. Remove or merge the column that gives the label away, or "
            + ("raise l2" if self.ridge.any() else "penalise with exchange='sums'")
        )

    def _shown(self, slopes: Indices) -> str:
        return ", ".join(self._names[self._kept[j]] for j in slopes)

    def fit(self, found: Maximum) -> MeanFit:
        """Return the fit in the columns' own units."""
        beta = self._raw(found.slopes)
        unit, chosen = np.r_[1.0, self._scale], np.r_[0, 1 + self._kept]
        information = np.zeros((len(beta) + 1, len(beta) + 1))
        information[np.ix_(chosen, chosen)] = found.information * np.outer(unit, unit)
        level = found.level
        if not self._intercept:
            level = float(self._mean @ beta)
            information = _about(information, -self._mean)
        # The labels' own term, and the saturated model, from any linear predictor.
        nothing = np.zeros(len(self._y))
        at_zero = self._family.log_likelihood(self._y, nothing)
        own = at_zero + float(self._family.cumulant(nothing).sum())
        value = own + found.log_likelihood
        deviance = float(self._family.deviance(self._y[:, None], nothing[:, None])[0])
        return MeanFit(
            level=level,
            beta=beta,
            mean=self._mean,
            information=information,
            varies=self._varies,
            has_intercept=self._intercept,
            log_likelihood=value,
            deviance=deviance + 2.0 * (at_zero - value),
            evaluations=found.evaluations,
            distance=found.distance,
        )


def _about(information: Array, mean: Array) -> Array:
    """Return the information of 1 and the columns plus their means."""
    turn = np.eye(len(information))
    turn[0, 1:] = mean
    return np.asarray(turn.T @ information @ turn)
