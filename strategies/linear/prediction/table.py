"""From the linear predictor and its variances to the table of predictions; pure numerics."""

import numpy as np
import pandas as pd
from scipy.special import expit, ndtri

from flwr_vertical.arrays import Array

LEVEL = 0.95
MEANS = {"gaussian": lambda eta: eta, "binomial": expit, "poisson": np.exp}
"""By family, the expectation of the label for a linear predictor."""

MARGIN = "margin"
"""Family of classifiers with decision values."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)


def prediction_table(
    family: str, eta: Array, unseen: Array, estimated: Array, noise: float
) -> pd.DataFrame:
    """Make the table of predictions.

    Shapes: eta (n_rows,): linear predictor, absent parties at their mean; unseen (n_rows,): its
    variance through the absent parties' columns; estimated (n_rows,): its variance through the
    estimates and the rounding of terms.
    """
    if family == MARGIN:
        return pd.DataFrame({"prediction": (eta > 0.0).astype(float), "decision": eta})
    z = float(ndtri(0.5 + LEVEL / 2))
    spread = unseen + estimated
    if family == "gaussian":
        half = z * np.sqrt(spread + noise)
        columns = {
            "prediction": eta,
            "std_error": np.sqrt(spread),
            "lower": eta - half,
            "upper": eta + half,
        }
        return pd.DataFrame(columns)
    mean = MEANS[family]
    prediction, square = _expectation(mean, eta, unseen)
    # The estimates' errors move the mean; to first order by its slope.
    step = 1e-4
    slope = (_expectation(mean, eta + step, unseen)[0] - prediction) / step
    half = z * np.sqrt(spread)
    columns = {
        "prediction": prediction,
        "std_error": np.sqrt(np.maximum(square - prediction**2, 0.0) + slope**2 * estimated),
        "lower": mean(eta - half),
        "upper": mean(eta + half),
        "linear_predictor": eta,
    }
    return pd.DataFrame(columns)


def _expectation(mean: object, eta: Array, variance: Array) -> tuple[Array, Array]:
    """Return expectations of a mean and of its square where eta is normal (Gauss and Hermite)."""
    assert callable(mean)
    values = mean(eta[:, None] + np.sqrt(variance)[:, None] * _NODES)
    weights = _WEIGHTS / _WEIGHTS.sum()
    return np.asarray(values @ weights), np.asarray(values**2 @ weights)
