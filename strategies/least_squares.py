"""Short import path of `strategies.regression.least_squares`."""

from strategies.regression.least_squares import (
    CompleteCase,
    LeastSquares,
    LeastSquaresParty,
    LeastSquaresSteps,
    MeanImpute,
    Single,
    SingleParty,
    solve,
)

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
