"""The likelihood of binomial and Poisson labels at its maximum, from masked means.

Moments and masked means are of standardised columns; what comes back is an `Approximation` in the
columns' units, as for normal labels.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from flwr_vertical import Federation
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.products import Moments, PrivateProducts
from strategies.glm.approximation import Approximation
from strategies.linear.coefficients import variables
from strategies.linear.families import family_named
from strategies.linear.masked_means.evaluate import MaskedMeans
from strategies.linear.masked_means.fit import fit_mean_model
from strategies.linear.masked_means.problem import Beside, MeanFit, MeanProblem
from strategies.linear.moments.collect import OpenedMoments
from strategies.linear.problem import Problem, need_key_stream, note_on_followers

MOST_EVALUATIONS = 30
"""Keeps a fit within 80 rounds, those of moments and path included."""

_VARIES = 1e-9
"""Of a column as it is offered, in units of about its standard deviation: a variance above."""


@dataclass(frozen=True)
class MaximumLikelihood:
    """The fit without a penalty, or its quadratic about what a penalty chose."""

    at: Approximation  # In the units of the columns, ridges included
    log_likelihood: float  # At the maximum, without ridges
    deviance: float  # At the maximum, without ridges
    evaluations: int  # How often sums of means were opened, two rounds each
    converged: bool  # Whether the last step was far below a standard error
    ridge: Array  # (n_columns,): what the square of each coefficient is multiplied by
    # (n_columns,): columns that got a ridge since their coefficients would grow without end
    bounded: Flags
    notes: tuple[str, ...]  # On these
    sums: Mapping[str, float]  # Further sums over residuals that were opened
    labels: float  # Sum of the labels


def maximum_likelihood(
    federation: Federation,
    opened: OpenedMoments,
    family: str,
    *,
    intercept: bool,
    standardize: bool,
    ridge: Array | float = 0.0,
    choose: Callable[[Approximation, bool | None], Array] | None = None,
    cure: str = "set a penalty",
    fewest: int | None = None,
    beside: Beside | None = None,
    vector_unit: float = 1.0,
    more: Collection[str] | None = None,
    follows: Flags | None = None,
) -> MaximumLikelihood:
    """Find the maximum of the likelihood; two rounds for each evaluation of the means, and more.

    Less `ridge`, one or of shape (n_columns,), times squared coefficients; with `choose` expanded
    about what that returns, until it stays. `beside`, `follows`: see `MeanProblem`; `more`: see
    `fit_mean_model`; `vector_unit`: what labels times weights were divided by.
    """
    problem, offered = opened.problem, opened.offered
    assert isinstance(opened.products, PrivateProducts)  # see `check_federation`
    y, inside = given_labels(federation, problem), opened.groups.group >= 0
    moments, center = offered.moments, offered.center
    total, size = float(y[inside].sum()), 1.0
    if beside is None:
        moments = with_labels(moments, problem)
    else:
        # Sums have digits for weights of about 1, and the fit ends near by standard errors.
        size = float(beside.weights.mean())
        beside = replace(beside, weights=beside.weights / size)
        moments = replace(moments, with_vectors=vector_unit / size * moments.with_vectors)
        total = float(beside.weights @ y[inside])
    n_rows = float(inside.sum())
    if not intercept:
        # Predictors are 0 where the columns are, not where the offered ones are.
        moments = shifted(moments, center / offered.unit, n_rows, total)
        center = np.zeros_like(center)
    own = offered.moments  # of which rounding leaves more digits than of shifted columns
    variance = np.diag(own.products[0]) / n_rows - (own.sums[0] / n_rows) ** 2
    spread = np.sqrt(np.maximum(variance, 0.0))

    def at(fit: MeanFit) -> Approximation:
        found = _approximation(fit, n_rows, spread, intercept).with_weights(size)
        if not standardize:
            found = found.with_scale(np.where(fit.varies, 1.0 / offered.unit, 0.0))
        return found.in_units(center, offered.unit)

    def follow(fit: MeanFit, keep: bool | None) -> tuple[float, Array]:
        here = at(fit)
        beta = choose(here, keep) if choose is not None else here.estimate[1:]
        return float(here.levels(beta[:, None])[0]), beta * offered.unit

    means = MaskedMeans(federation, opened.products.group_key)
    names = [":".join(pair) for pair in variables(problem.columns)]
    units = None if standardize else 1.0 / offered.unit
    fit = fit_mean_model(
        MeanProblem(
            means, family_named(family), y[inside], moments, names, intercept, ridge / size, units,
            beside, follows, penalised=choose is not None,
        ),
        opened.groups.group,
        max_evaluations=MOST_EVALUATIONS,
        follow=None if choose is None else follow,
        cure=cure,
        fewest=fewest,
        allowed=opened.allowed,
        more=more,
    )  # fmt: skip
    notes = fit.notes
    if fit.follows.any():
        notes += (note_on_followers(opened.names(np.flatnonzero(fit.follows))),)
    if len(lost := np.flatnonzero(~fit.varies & ~fit.follows & (variance > _VARIES))):
        notes += (
            f"columns {opened.names(lost)} lie so far from 0 that without an intercept they seem "
            "constant; they are left out and have no coefficient: subtract a number "
            "near their mean in the table",
        )
    return MaximumLikelihood(
        at(fit),
        size * fit.log_likelihood,
        size * fit.deviance,
        fit.evaluations,
        fit.converged,
        size * fit.ridge * offered.unit**2,
        fit.bounded,
        notes,
        {name: size * value for name, value in fit.sums.items()},
        float(y[inside].sum()),
    )


def check_federation(what: str, federation: Federation) -> None:
    """Refuse federations that cannot evaluate masked means, before anything is opened."""
    need_key_stream(
        what, federation,
        alone=". It has all columns: fit there by statsmodels or scikit-learn; or use strategy "
        "'glm-admm', if its node agrees to exchange 'sums'",
        encrypted=", or strategy 'glm-admm', if every node agrees to exchange 'sums'",
    )  # fmt: skip


def with_labels(
    moments: Moments, problem: Problem, times: float = 1.0, plus: float = 0.0
) -> Moments:
    """Return the moments with ``times * label + plus``; their labels were standardised."""
    own, shift = times * problem.y_scale * moments.with_vectors, times * problem.y_center + plus
    return replace(moments, with_vectors=own + shift * moments.sums[:, :, None])


def shifted(moments: Moments, by: Array, n_rows: float, labels: float) -> Moments:
    """Return the moments of one group with a vector added to its rows."""
    by = np.where(moments.withheld[0], 0.0, by)
    sums = moments.sums[0]
    across = np.outer(sums, by)
    return replace(
        moments,
        sums=(sums + n_rows * by)[None],
        products=(moments.products[0] + across + across.T + n_rows * np.outer(by, by))[None],
        with_vectors=moments.with_vectors + labels * by[None, :, None],
    )


def given_labels(federation: Federation, problem: Problem) -> Array:
    """Return the labels of the labelled samples as they were given, shape (n_labelled,)."""
    return np.asarray(federation.labels, dtype=np.float64)[problem.labelled]


def _approximation(fit: MeanFit, n_rows: float, spread: Array, intercept: bool) -> Approximation:
    """Return the quadratic of likelihood and ridge at their maximum, in the units of the fit."""
    information = fit.information + np.diag(np.append(0.0, 2.0 * fit.ridge))
    center, level, middle = fit.mean, fit.level, fit.middle
    if not intercept:
        about_zero = np.eye(len(information))
        about_zero[0, 1:] = center
        information = about_zero.T @ information @ about_zero
        middle = None if middle is None else about_zero.T @ middle @ about_zero
        center, level = np.zeros_like(center), 0.0
    return Approximation(
        n_rows=n_rows,
        center=center,
        scale=np.where(fit.varies, spread, 0.0),
        information=information,
        estimate=np.append(level, fit.beta),
        intercept=intercept,
        middle=middle,
    )
