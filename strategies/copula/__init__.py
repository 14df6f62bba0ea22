"""Private synthetic tables by a Gaussian copula (Tang, Feng, Li and Wang): VCDS."""

from strategies.copula.party import CopulaParty
from strategies.copula.strategy import VCDS

__all__ = ["VCDS", "CopulaParty"]
