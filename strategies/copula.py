"""Short import path of `strategies.synthesis.copula`."""

from strategies.synthesis.copula import EVCDS, IEVCDS, VCDS, CopulaParty

__all__ = ["EVCDS", "IEVCDS", "VCDS", "CopulaParty"]
