"""Predict new samples with a fitted model."""

from strategies.predict.strategy import Predict

__all__ = ["Predict"]
