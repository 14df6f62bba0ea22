"""VFL-GLM-VS as printed: sharing ADMM, and VFL-ADMM-DP (Tang, Feng, Li and Wang, Section 4)."""

from strategies.glm_admm.party import GLMADMMParty
from strategies.glm_admm.strategy import GLMADMM

__all__ = ["GLMADMM", "GLMADMMParty"]
