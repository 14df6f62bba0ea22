"""Short import path of `strategies.regression.prediction`."""

from strategies.regression.prediction.strategy import Predict

__all__ = ["Predict"]
