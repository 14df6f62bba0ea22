"""Linear support vector machines over columns of several parties."""

from strategies.svm.strategy import SVMParty, VerticalSVM

__all__ = ["SVMParty", "VerticalSVM"]
