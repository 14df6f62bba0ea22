"""The likelihood of binomial and Poisson labels at its maximum, from masked means.

Moments and masked means are of standardised columns; what comes back is an `Approximation` in the
columns' units, as for normal labels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flwr_vertical import Federation
from flwr_vertical.products import Moments
from strategies.regression import Problem
from strategies.regression.glm.approximation import Approximation
from strategies.regression.glm.families import family_named
from strategies.regression.glm.mean_fit import MeanFit, fit_mean_model
from strategies.regression.moments import OpenedMoments, Pattern

if TYPE_CHECKING:
    from strategies.regression.glm.strategy import VerticalGLM

Array = npt.NDArray[np.float64]

MOST_EVALUATIONS = 30
"""Keeps a fit within 70 rounds, those of moments and path included."""


@dataclass(frozen=True)
class MaximumLikelihood:
    """The fit without a penalty.

    Parameters
    ----------
    at : Approximation
        In the units of the columns.
    log_likelihood, deviance : float
        At the maximum.
    evaluations : int
        How often sums of means were opened, two rounds each.
    converged : bool
    """

    at: Approximation
    log_likelihood: float
    deviance: float
    evaluations: int
    converged: bool


def maximum_likelihood(
    settings: "VerticalGLM", federation: Federation, opened: OpenedMoments, rows: Pattern
) -> MaximumLikelihood:
    """Find the maximum of the likelihood; two rounds for each evaluation, and one.

    Parameters
    ----------
    settings : VerticalGLM
    federation : Federation
    opened : OpenedMoments
        Of the complete rows.
    rows : Pattern
        Their moments, the label the last column.

    Raises
    ------
    DataError
        If labels are separated, or columns determine each other.
    """
    problem = opened.problem
    sums, products = rows.sums, rows.products
    center = opened.center
    if not settings.intercept:
        # Predictors are 0 where the columns are, not where they have their means.
        shift = np.append(center / opened.unit, 0.0)
        center = np.zeros_like(center)
        products = (
            products
            + np.outer(sums, shift)
            + np.outer(shift, sums)
            + rows.n_rows * np.outer(shift, shift)
        )
        sums = sums + rows.n_rows * shift
    with_labels = problem.y_scale * products[:-1, -1] + problem.y_center * sums[:-1]
    y = given_labels(federation, problem)
    fit = fit_mean_model(
        federation,
        opened.products,
        family_named(settings.family),
        y,
        opened.groups.group,
        problem.columns,
        intercept=settings.intercept,
        max_evaluations=MOST_EVALUATIONS,
        moments=Moments(sums[None, :-1], products[None, :-1, :-1], with_labels[None, :, None]),
    )
    variance = np.diag(products)[:-1] / rows.n_rows - (sums[:-1] / rows.n_rows) ** 2
    at = _approximation(fit, rows.n_rows, np.sqrt(np.maximum(variance, 0.0)), settings.intercept)
    if not settings.standardize:
        at = at.with_scale(np.where(fit.varies, 1.0 / opened.unit, 0.0))
    return MaximumLikelihood(
        at.in_units(center, opened.unit),
        fit.log_likelihood,
        fit.deviance,
        fit.evaluations,
        fit.converged,
    )


def given_labels(federation: Federation, problem: Problem) -> Array:
    """Return the labels of the labelled samples as they were given, shape (n_labelled,)."""
    return np.asarray(federation.labels, dtype=np.float64)[problem.labelled]


def _approximation(fit: MeanFit, n_rows: float, spread: Array, intercept: bool) -> Approximation:
    """Return the quadratic at the maximum, in the units of the fit."""
    information, center, level = fit.information, fit.mean, fit.level
    if not intercept:
        about_zero = np.eye(len(information))
        about_zero[0, 1:] = center
        information = about_zero.T @ information @ about_zero
        center, level = np.zeros_like(center), 0.0
    return Approximation(
        n_rows=n_rows,
        center=center,
        scale=np.where(fit.varies, spread, 0.0),
        information=information,
        estimate=np.append(level, fit.beta),
        intercept=intercept,
    )
