"""Short import path of `strategies.linear.prediction`."""

from strategies.predict.strategy import Predict

__all__ = ["Predict"]
