"""Synthetic tables from noisy marginals by a graphical model: MST and AIM, over parties."""

from strategies.marginals.party import MarginalsParty
from strategies.marginals.strategy import AIM, MST

__all__ = ["AIM", "MST", "MarginalsParty"]
