"""Trees over columns of several parties: gradient boosting, and forests."""

from strategies.forest.predict import ForestPredict
from strategies.forest.strategy import VerticalForest
from strategies.trees.predict import TreesPredict
from strategies.trees.strategy import VerticalGBDT

__all__ = ["ForestPredict", "TreesPredict", "VerticalForest", "VerticalGBDT"]
