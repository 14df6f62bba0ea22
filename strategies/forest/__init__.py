"""Random forests of which the server learns summed votes alone."""

from strategies.forest.strategy import VerticalForest

__all__ = ["VerticalForest"]
