"""Proportional hazards (Cox) over several parties, by sums over risk sets."""

from strategies.cox.labels import survival_labels
from strategies.cox.model import CoxModel
from strategies.cox.strategy import Cox

__all__ = ["Cox", "CoxModel", "survival_labels"]
