"""What the server keeps of a fit of `VFEM`."""

from dataclasses import dataclass, field
from typing import Any

from flwr_vertical import Model

LEVEL = 0.95
"""Of confidence intervals."""


@dataclass
class VFEMModel(Model):
    """What the server knows of a fitted model, in label units."""

    strategy = "vfem"

    outcome: str  # ``converged``, ``max iterations`` or ``diverged``
    intercept: float = 0.0
    sigma2: float = float("nan")  # Variance of the noise
    # By party and variable
    coefficients: dict[str, dict[str, float]] = field(default_factory=dict)
    # mean_fit, explained: By party, mean and variance of its fit: what stands in for a missing
    # block
    mean_fit: dict[str, float] = field(default_factory=dict)
    explained: dict[str, float] = field(default_factory=dict)
    level_variance: float = 0.0  # Variance of the estimated level, of predictions at the means
    # Of intercept and coefficients, in the table's order, in label units per unit of the variable
    covariance: Any = None
