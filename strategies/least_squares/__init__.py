"""Ordinary least squares over vertically split columns, and the baselines that are made of it."""

from strategies.least_squares.party import LeastSquaresParty, SingleParty
from strategies.least_squares.single import Single
from strategies.least_squares.solver import LeastSquares, solve
from strategies.least_squares.strategy import CompleteCase, MeanImpute

__all__ = [
    "CompleteCase",
    "LeastSquares",
    "LeastSquaresParty",
    "MeanImpute",
    "Single",
    "SingleParty",
    "solve",
]
