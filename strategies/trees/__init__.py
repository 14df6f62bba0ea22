"""Trees over columns of several parties: gradient boosting, and forests."""

from strategies.trees.forest import VerticalForest
from strategies.trees.predict import TreesPredict
from strategies.trees.strategy import VerticalGBDT
from strategies.trees.votes.predict import ForestPredict

__all__ = ["ForestPredict", "TreesPredict", "VerticalForest", "VerticalGBDT"]
