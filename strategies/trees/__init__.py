"""Gradient boosting of trees over columns of several parties."""

from strategies.trees.strategy import VerticalGBDT

__all__ = ["VerticalGBDT"]
