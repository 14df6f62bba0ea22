"""Predictions with coefficients that stay at the parties.

A party of a fit declares ``prediction = Uses(PredictionSteps)``; the server ends the fit with
`keep_and_predict`, given `Regressions`: those of `joint_regressions` for a joint normal model, else
`Regressions.additive`. Later rows are predicted by the strategy `Predict`.
"""

from strategies.regression.prediction.joint import joint_regressions
from strategies.regression.prediction.part import LinearPart
from strategies.regression.prediction.regressions import Regressions
from strategies.regression.prediction.server import Predictor, keep_and_predict
from strategies.regression.prediction.steps import PredictionSteps

__all__ = [
    "LinearPart",
    "PredictionSteps",
    "Predictor",
    "Regressions",
    "joint_regressions",
    "keep_and_predict",
]
