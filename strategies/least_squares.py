"""Short import path of `strategies.regression.least_squares`."""

from strategies.regression.least_squares import CompleteCase, MeanImpute, Single

__all__ = ["CompleteCase", "MeanImpute", "Single"]
