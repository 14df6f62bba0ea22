"""VFL-GLM-VS: sparse generalised linear models over parties (Tang, Feng, Li and Wang)."""

from strategies.glm.central import CentralFit, fit_glm
from strategies.glm.outcome import GLMModel
from strategies.glm.party import GLMParty
from strategies.glm.strategy import VerticalGLM

__all__ = ["CentralFit", "GLMModel", "GLMParty", "VerticalGLM", "fit_glm"]
