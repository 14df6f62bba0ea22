"""Exploration of a joint table: overlap, correlations, missing cells, information value."""

from strategies.explore.strategy import Explore

__all__ = ["Explore"]
