"""Ordinary least squares over vertically split columns, and the baselines that are made of it."""

from strategies.regression.least_squares.party import (
    LeastSquaresParty,
    LeastSquaresSteps,
    SingleParty,
)
from strategies.regression.least_squares.single import Single
from strategies.regression.least_squares.solver import LeastSquares, solve
from strategies.regression.least_squares.strategy import CompleteCase, MeanImpute

__all__ = [
    "CompleteCase",
    "LeastSquares",
    "LeastSquaresParty",
    "LeastSquaresSteps",
    "MeanImpute",
    "Single",
    "SingleParty",
    "solve",
]
