"""VFL-GLM-VS: sparse generalised linear models over parties (Tang, Feng, Li and Wang)."""

from strategies.regression.glm.model import GLMModel
from strategies.regression.glm.party import GLMParty
from strategies.regression.glm.strategy import VerticalGLM
from strategies.regression.glm.sums.central import CentralFit, fit_glm

__all__ = ["CentralFit", "GLMModel", "GLMParty", "VerticalGLM", "fit_glm"]
