"""Short import path of `strategies.regression.glm`."""

from strategies.regression.glm import CentralFit, GLMModel, GLMParty, VerticalGLM, fit_glm

__all__ = ["CentralFit", "GLMModel", "GLMParty", "VerticalGLM", "fit_glm"]
