"""The values of lambda, and which of them the Bayesian information criterion (BIC) prefers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError
from strategies.linear.families import Family

BIC = "bic"


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


def stated(lambdas: str | float) -> Array | None:
    """Return the values that a setting states, shape (n_lambdas,); None for ``"bic"``."""
    if lambdas == BIC:
        return None
    parts = lambdas.split(",") if isinstance(lambdas, str) else [lambdas]
    return np.array([float(part) for part in parts])


def grid(largest: float, count: int, ratio: float) -> Array:
    """Return `count` values from `largest` down to ``ratio * largest``, evenly in logarithms."""
    if count == 1:
        return np.array([largest])
    return np.asarray(largest * np.geomspace(1.0, ratio, count))


def information_criterion(
    family: Family, y: Array, eta: Array, n_selected: npt.NDArray[np.int64]
) -> Array:
    """Return the BIC of fits, up to a constant.

    The paper prints ``f(beta) + df log(N)`` with a mean loss f, in which the second term would rule
    alone; the usual criterion is meant: minus twice the log likelihood, and ``df log(N)``. The
    noise variance of a gaussian fit is its own (Wang, Li and Tsai, 2007).

    Shapes: y (n_samples,); eta (n_samples, n_fits); n_selected (n_fits,): coefficients that are
    not zero; returns (n_fits,).
    """
    n = len(y)
    deviance = family.deviance(y[:, None], eta)
    if family.has_dispersion:
        deviance = n * np.log(np.maximum(deviance, 1e-300) / n)
    return np.asarray(deviance + n_selected * np.log(n))
