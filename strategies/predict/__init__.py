"""Predict new samples with a fitted linear model."""

from strategies.predict.strategy import Predict

__all__ = ["Predict"]
