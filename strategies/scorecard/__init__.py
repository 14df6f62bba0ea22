"""Scorecard: logistic regression on weights of evidence of bins, points, reasons."""

from strategies.scorecard.strategy import Scorecard

__all__ = ["Scorecard"]
