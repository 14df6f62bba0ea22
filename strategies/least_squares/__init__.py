"""Least squares over vertically split columns: three baselines."""

from strategies.least_squares.strategy import CompleteCase, MeanImpute, Single

__all__ = ["CompleteCase", "MeanImpute", "Single"]
