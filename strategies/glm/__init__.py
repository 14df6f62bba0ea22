"""Sparse generalised linear models over parties, after Tang, Feng, Li and Wang, Section 4."""

from strategies.glm.outcome import GLMModel
from strategies.glm.party import GLMParty
from strategies.glm.strategy import VerticalGLM

__all__ = ["GLMModel", "GLMParty", "VerticalGLM"]
