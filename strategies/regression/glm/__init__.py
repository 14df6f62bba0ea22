"""VFL-GLM-VS: sparse generalised linear models over parties (Tang, Feng, Li and Wang)."""

from strategies.regression.glm.central import CentralFit, fit_glm
from strategies.regression.glm.outcome import GLMModel
from strategies.regression.glm.party import GLMParty
from strategies.regression.glm.strategy import VerticalGLM

__all__ = ["CentralFit", "GLMModel", "GLMParty", "VerticalGLM", "fit_glm"]
