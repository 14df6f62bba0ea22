"""Trees over columns of several parties: gradient boosting."""

from strategies.trees.predict import TreesPredict
from strategies.trees.strategy import VerticalGBDT

__all__ = ["TreesPredict", "VerticalGBDT"]
