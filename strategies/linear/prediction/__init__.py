"""Predictions with coefficients that stay at the parties.

A party of a fit declares ``prediction = Uses(PredictionSteps)``; the server ends the fit with
`keep_and_predict`, given `Regressions`: those of `joint_regressions` for a joint normal model, else
`Regressions.additive`. Later rows are predicted by the strategy `Predict`.
"""

from strategies.linear.prediction.conditional_regressions import joint_regressions
from strategies.linear.prediction.party_model import LinearPart
from strategies.linear.prediction.regressions import Regressions
from strategies.linear.prediction.server import Predictor, keep_and_predict
from strategies.linear.prediction.steps import PredictionSteps

__all__ = [
    "LinearPart",
    "PredictionSteps",
    "Predictor",
    "Regressions",
    "joint_regressions",
    "keep_and_predict",
]
