"""Random forests of which the server learns summed votes alone: routing stays with the parties."""

from strategies.forest.strategy import VerticalForest

__all__ = ["VerticalForest"]
