"""Regression from moments: sums over groups of rows, and what is fitted to them.

A strategy's server half calls `open_moments` (prepare, keys, masked columns, products: four rounds)
with a grouping of rows, `by_pattern` or `complete_rows`. It gets `OpenedMoments`, whose
`patterns` hold the sums of [1, observed columns, label] by group. `fit_normal` maximises the normal
likelihood of all patterns; `least_squares` solves the normal equations of their total. Its party
half is a `moment_party.MomentParty`, or has the same step groups; its last step erases the group
seed.
"""

from strategies.linear.moments.budget import Budget, check_budget
from strategies.linear.moments.collect import OpenedMoments, open_moments
from strategies.linear.moments.covariances import (
    BlockCovariance,
    CovarianceModel,
    FullCovariance,
    NoisePrior,
    RegressionCovariance,
)
from strategies.linear.moments.dp_moments import (
    GroupNoise,
    NoisyFit,
    noisy_least_squares,
)
from strategies.linear.moments.fit import Fit, fit_normal
from strategies.linear.moments.groups import by_pattern, complete_rows
from strategies.linear.moments.linear import LinearFit, least_squares
from strategies.linear.moments.no_intercept import Through
from strategies.linear.moments.patterns import Pattern, Patterns
from strategies.linear.moments.steps import MomentSteps

__all__ = [
    "BlockCovariance",
    "Budget",
    "CovarianceModel",
    "Fit",
    "FullCovariance",
    "GroupNoise",
    "LinearFit",
    "MomentSteps",
    "NoisePrior",
    "NoisyFit",
    "OpenedMoments",
    "Pattern",
    "Patterns",
    "RegressionCovariance",
    "Through",
    "by_pattern",
    "check_budget",
    "complete_rows",
    "fit_normal",
    "least_squares",
    "noisy_least_squares",
    "open_moments",
]
