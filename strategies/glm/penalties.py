"""Penalties, by the derivative that local linear approximation (LLA) needs.

Zou and Li (2008) replace a folded concave penalty by its tangent at the last estimate, which is a
lasso with one weight for each coefficient, ``alpha_j = P'(|beta_j|) / lambda`` (Eq. 4.3 of Tang,
Feng, Li and Wang). SCAD is of Fan and Li (2001), MCP of Zhang (2010).
"""

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError

PENALTIES = ("scad", "mcp", "lasso", "none")
CONCAVE = ("scad", "mcp")
SHAPES = {"scad": 3.7, "mcp": 3.0, "lasso": 0.0, "none": 0.0}
"""The usual ``a``: 3.7 for SCAD (Fan and Li, 2001), 3 for MCP."""


def check_penalty(name: str | None, shape: float) -> tuple[str, float]:
    """Return the penalty's name and shape, or raise `ConfigError`; a shape of 0 is the usual."""
    known = "none" if name is None else name
    if known not in PENALTIES:
        raise ConfigError(f"unknown penalty {name!r}; expected one of {list(PENALTIES)} or None")
    if isinstance(shape, bool) or not isinstance(shape, int | float) or not np.isfinite(shape):
        raise ConfigError(f"penalty_shape must be a number, got {shape!r}")
    least = {"scad": 2.0, "mcp": 1.0}.get(known, 0.0)
    if shape and known in CONCAVE and shape <= least:
        raise ConfigError(f"penalty_shape of {known!r} must be above {least:g}, got {shape:g}")
    return known, float(shape) or SHAPES[known]


def lla_weights(beta: Array, strengths: Array, penalty: str, shape: float) -> Array:
    """Return ``alpha = P'(|beta|) / lambda``.

    Shapes: beta (n_columns, n_fits): last estimates; strengths (n_fits,): ``lambda`` of each fit;
    returns (n_columns, n_fits): between 0 and 1; 1 at zero.
    """
    size = np.abs(beta)
    if penalty == "lasso":
        return np.ones_like(beta)
    if penalty == "none":
        return np.zeros_like(beta)
    level = np.maximum(strengths, 1e-300)
    if penalty == "mcp":
        return np.maximum(1.0 - size / (shape * level), 0.0)
    beyond = np.maximum(shape * level - size, 0.0) / ((shape - 1.0) * level)
    return np.where(size <= level, 1.0, beyond)
