"""From a least-squares fit to what people read: coefficients, predictions, figures of merit.

Standard errors need no products of columns of different parties. Under the model that VFEM makes,
rows of different parties are independent and normal. Then, given party k's centred columns ``Z_k``,
its block of the inverse of all columns' Gram matrix is on average
``(nu - p_k - 1) / (nu - p - 1) (Z_k' Z_k)^-1``, where ``nu = n - 1`` (``n`` without an intercept),
and ``p_k`` and ``p`` count the columns of the party and of all: the other parties' columns take a
random share of ``Z_k`` away, and this is the mean of an inverse matrix beta variable (without the
condition on ``Z_k``, of inverse Wishart ones). With one party it is the inverse itself.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtri

from strategies.regression import Problem, coefficient_table
from strategies.regression.least_squares.moments import Moments

Array = npt.NDArray[np.float64]

LEVEL = 0.95


def variance_correction(n_samples: int, rank: int, n_parameters: int, intercept: bool) -> float:
    """Return what the other parties' columns multiply a party's variances with, on average.

    Parameters
    ----------
    n_samples : int
        Samples of the fit.
    rank : int
        Columns of the party.
    n_parameters : int
        Columns of all parties, and the intercept.
    intercept : bool
        Whether there is one.
    """
    freedom = n_samples - intercept
    columns = n_parameters - intercept
    if rank == columns:
        return 1.0
    # With one spare sample only, the expectation is infinite.
    return (freedom - rank - 1) / max(freedom - columns - 1, 1)


def joint_leverage(leverage: Array, pull: Array | None = None, mean_weight: float = 0.0) -> Array:
    """Return the variance of fits through the coefficients, over the noise variance.

    Parameters
    ----------
    leverage : numpy.ndarray of shape (n_rows,)
        Sum over parties of ``x_k' V_k x_k``, without an intercept plus ``pull_k^2 / (1 + w)``.
    pull : numpy.ndarray of shape (n_rows,), optional
        Without an intercept, sum over parties of `LocalBlock.pulls`: coefficients of different
        parties have the covariance ``-n B_k^-1 mu_k mu_l' B_l^-1 / (1 + w)``.
    mean_weight : float
        ``w``, see `LocalBlock.covariance`.
    """
    return leverage if pull is None else leverage - pull**2 / (1.0 + mean_weight)


def coefficients(
    problem: Problem, moments: Moments, told: Mapping[str, Mapping[str, Any]], std_errors: bool
) -> pd.DataFrame:
    """Make the table of coefficients in label units from what parties told in the end.

    Parameters
    ----------
    problem : Problem
    moments : Moments
    told : Mapping[str, Mapping[str, Any]]
        By party, see `party.estimates`.
    std_errors : bool
        Whether these have standard errors.
    """
    scale, sigma = problem.y_scale, float(np.sqrt(moments.sigma2))
    intercept = spread = None
    if moments.has_intercept:
        offset = sum(float(values["offset"]) for values in told.values())
        intercept = problem.y_center + scale * (moments.level - offset)
        if std_errors:
            variance = sum(float(values["offset_variance"]) for values in told.values())
            spread = scale * sigma * float(np.sqrt(1.0 / moments.n_samples + variance))
    return coefficient_table(
        {name: problem.columns[name] for name in told},
        {name: scale * np.asarray(values["beta"]) for name, values in told.items()},
        {name: scale * sigma * np.asarray(values["std_error"]) for name, values in told.items()}
        if std_errors
        else None,
        intercept,
        spread,
        LEVEL,
    )


def predictions(
    problem: Problem,
    moments: Moments,
    index: "pd.Index[Any]",
    fit: Array,
    leverage: Array | None,
    unseen: Array,
) -> pd.DataFrame:
    """Make the table of predictions in label units.

    Parameters
    ----------
    problem : Problem
    moments : Moments
    index : pandas.Index of shape (n_unlabelled,)
        Names of the samples.
    fit, leverage : numpy.ndarray of shape (n_unlabelled,)
        Of all parties, standardised; without leverage there are no standard errors.
    unseen : numpy.ndarray of shape (n_unlabelled,)
        Variance of the fits of the parties that lack the sample.
    """
    value = problem.y_center + problem.y_scale * (moments.level + fit)
    std_error = np.full(len(value), np.nan)
    if leverage is not None:
        own = 1.0 + moments.has_intercept / moments.n_samples + leverage
        std_error = problem.y_scale * np.sqrt(np.maximum(moments.sigma2 * own + unseen, 0.0))
    half = ndtri(0.5 + LEVEL / 2) * std_error
    return pd.DataFrame(
        {
            "prediction": value,
            "std_error": std_error,
            "lower": value - half,
            "upper": value + half,
        },
        index=index,
    )
