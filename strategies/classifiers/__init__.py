"""Linear classifiers over columns of several parties."""

from strategies.classifiers.lr import VerticalLR
from strategies.classifiers.svm import VerticalSVM

__all__ = ["VerticalLR", "VerticalSVM"]
