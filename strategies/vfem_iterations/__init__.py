"""VFEM by the paper's own iterations: Algorithm 1, standard errors, Algorithm 2's sketches."""

from strategies.vfem_iterations.strategy import VFEMIterations

__all__ = ["VFEMIterations"]
