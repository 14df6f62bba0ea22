"""Penalties, by the derivative that local linear approximation (LLA) needs, and values of lambda.

Zou and Li (2008) replace a folded concave penalty by its tangent at the last estimate, which is a
lasso with one weight for each coefficient, ``alpha_j = P'(|beta_j|) / lambda`` (Eq. 4.3 of Tang,
Feng, Li and Wang). SCAD is of Fan and Li (2001), MCP of Zhang (2010).
"""

from collections.abc import Sequence

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError

SELECTING = ("scad", "mcp", "lasso")
"""Penalties that select columns."""
CONCAVE = ("scad", "mcp")
SHAPES = {"scad": 3.7, "mcp": 3.0}
"""The usual ``a``: 3.7 for SCAD (Fan and Li, 2001), 3 for MCP."""
BIC, GCV = "bic", "gcv"


def lla_weights(beta: Array, strengths: Array, penalty: str) -> Array:
    """Return ``alpha = P'(|beta|) / lambda``, (n_columns, n_fits): 1 at zero."""
    if penalty == "lasso":
        return np.ones_like(beta)
    if penalty not in CONCAVE:
        return np.zeros_like(beta)
    size, shape = np.abs(beta), SHAPES[penalty]
    level = np.maximum(strengths, 1e-300)
    if penalty == "mcp":
        return np.maximum(1.0 - size / (shape * level), 0.0)
    beyond = np.maximum(shape * level - size, 0.0) / ((shape - 1.0) * level)
    return np.where(size <= level, 1.0, beyond)


def penalty_values(beta: Array, strength: float, penalty: str) -> Array:
    """Return ``P(|beta|)``, (n_columns,): the integral of its derivative."""
    share = np.linspace(0.0, 1.0, 1001)
    strengths = np.full(len(share), strength)
    slopes = strength * lla_weights(np.abs(np.outer(beta, share)), strengths, penalty)
    return np.abs(beta) * np.asarray(np.trapezoid(slopes, share, axis=1))


def parse_lambdas(lambdas: "str | float | Sequence[float]") -> str | float:
    """Return the setting in plain form: ``"bic"``, a number, or numbers as text with commas."""
    if isinstance(lambdas, str) and lambdas.strip().lower() == BIC:
        return BIC
    parts: list[object] = []
    if isinstance(lambdas, str):
        parts = [part for part in lambdas.split(",") if part.strip()]
    elif isinstance(lambdas, int | float | np.number):
        parts = [lambdas]
    else:
        parts = list(lambdas)
    if not parts:
        raise ConfigError("lambdas is empty: give 'bic', one number or several, such as [0.1, 0.2]")
    values = []
    for part in parts:
        try:
            value = float(part)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            value = np.nan
        if isinstance(part, bool) or not 0 <= value < np.inf:
            raise ConfigError(f"lambdas must be numbers of at least 0, or 'bic', got {part!r}")
        values.append(value)
    single = len(values) == 1 and not isinstance(lambdas, Sequence)
    return values[0] if single else ",".join(map(repr, values))


def parse_l2(l2: object) -> str | float:
    """Return the setting in plain form: ``"gcv"``, or a number."""
    if isinstance(l2, str) and l2.strip().lower() == GCV:
        return GCV
    try:
        value = -1.0 if isinstance(l2, bool) else float(l2)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = -1.0
    if not 0.0 <= value < np.inf:
        raise ConfigError(f"l2 must be a number of at least 0, or 'gcv', got {l2!r}")
    return value


def stated(lambdas: str | float) -> Array | None:
    """Return the values that a setting states, shape (n_lambdas,); None for ``"bic"``."""
    if lambdas == BIC:
        return None
    parts = lambdas.split(",") if isinstance(lambdas, str) else [lambdas]
    return np.array([float(part) for part in parts])


def grid(largest: float, count: int = 50, ratio: float = 0.01) -> Array:
    """Return `count` values from `largest` down to ``ratio * largest``, evenly in logarithms."""
    if count == 1:
        return np.array([largest])
    return np.asarray(largest * np.geomspace(1.0, ratio, count))
