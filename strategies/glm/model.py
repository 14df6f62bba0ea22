"""What the server knows of a fitted model."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from flwr_vertical import Model


@dataclass
class GLMModel(Model):
    """What the server knows of a fitted model.

    Parameters
    ----------
    outcome : str
        ``converged``, ``max iterations`` or ``separated``.
    family : str
    intercept : float
        0 if there is none.
    coefficients : dict of str to dict of str to float
        By party and variable.
    dispersion : float
        Variance of the noise of a gaussian fit, else 1.
    path : pandas.DataFrame
        By lambda: ``bic``, ``selected``, ``intercept``; of a fit by iterations also ``outcome``,
        ``rounds`` and ``tolerated``, and ``intercept`` only where several lambdas were stated.
    path_coefficients : pandas.DataFrame, optional
        Index (party, variable), a column for each lambda; of a fit by iterations only where several
        lambdas were stated.
    covariance : numpy.ndarray, optional
        Of intercept and selected coefficients, in the table's order.
    ridged : list of str
        Columns, as ``party:variable``, whose coefficients have a ridge since they would grow
        without end; their standard errors are NaN.
    """

    strategy = "glm"

    outcome: str
    family: str = ""
    intercept: float = 0.0
    coefficients: dict[str, dict[str, float]] = field(default_factory=dict)
    dispersion: float = 1.0
    path: pd.DataFrame | None = None
    path_coefficients: pd.DataFrame | None = None
    covariance: Any = None
    ridged: list[str] = field(default_factory=list)
