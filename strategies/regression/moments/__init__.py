"""Regression from moments: a joint normal model fitted to sums over groups of rows."""

from strategies.regression.moments.covariances import (
    BlockCovariance,
    CovarianceModel,
    FullCovariance,
)
from strategies.regression.moments.fit import Fit, fit_normal
from strategies.regression.moments.patterns import Pattern, Patterns

__all__ = [
    "BlockCovariance",
    "CovarianceModel",
    "Fit",
    "FullCovariance",
    "Pattern",
    "Patterns",
    "fit_normal",
]
