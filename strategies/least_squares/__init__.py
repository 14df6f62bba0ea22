"""Least squares over vertically split columns: three baselines, and a start for VFEM."""

from strategies.least_squares.party import LeastSquaresSteps
from strategies.least_squares.solver import LeastSquares, solve
from strategies.least_squares.strategy import CompleteCase, MeanImpute, Single

__all__ = ["CompleteCase", "LeastSquares", "LeastSquaresSteps", "MeanImpute", "Single", "solve"]
