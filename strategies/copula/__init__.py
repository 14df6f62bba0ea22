"""Private synthetic tables by a Gaussian copula (Tang, Feng, Li and Wang): VCDS, EVCDS, IEVCDS."""

from strategies.copula.party import CopulaParty
from strategies.copula.strategy import EVCDS, IEVCDS, VCDS

__all__ = ["EVCDS", "IEVCDS", "VCDS", "CopulaParty"]
