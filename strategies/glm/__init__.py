"""VFL-GLM-VS: sparse generalised linear models over parties (Tang, Feng, Li and Wang)."""

from strategies.glm.model import GLMModel
from strategies.glm.party import GLMParty
from strategies.glm.strategy import VerticalGLM
from strategies.glm.sums.central import CentralFit, fit_glm

__all__ = ["CentralFit", "GLMModel", "GLMParty", "VerticalGLM", "fit_glm"]
