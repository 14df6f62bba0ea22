"""Which blocks are missing: at random given what is always seen, or by a common factor."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from flwr_vertical.arrays import AnyArray, Array, Flags

NODES = 200  # of the Gauss-Hermite rule; the integrand is smooth


def logistic_mask(scores: Array, rates: Sequence[float], rng: np.random.Generator) -> Flags:
    """Drop blocks with log-odds `scores`, plus an offset that meets each party's rate."""
    mask = np.zeros((len(scores), len(rates)), dtype=np.bool_)
    for k, rate in enumerate(rates):
        if rate > 0:
            mask[:, k] = rng.random(len(scores)) < logistic_chance(scores, rate)
    return mask


def logistic_chance(scores: Array, rate: float) -> Array:
    """Probabilities with the mean `rate` whose log-odds differ from `scores` by a constant."""
    reach = float(np.abs(scores).max()) + 50.0
    offset = brentq(lambda shift: float(expit(scores + shift).mean()) - rate, -reach, reach)
    return np.asarray(expit(scores + offset))


def mar_scores(
    labels: "pd.Series[float]", first: pd.DataFrame, label_weight: float, first_weight: float
) -> Array:
    """Log-odds that depend on the label and the first party's columns, which are always seen."""
    label = standardised(labels.to_numpy(dtype=np.float64))
    return label_weight * label + first_weight * standardised(first.to_numpy().sum(axis=1))


def standardised(values: AnyArray) -> Array:
    """Return the values with mean 0 and standard deviation 1."""
    return np.asarray((values - values.mean()) / values.std())


def factor_mask(
    common: Array, rates: Sequence[float], shared: float, rng: np.random.Generator
) -> Flags:
    """Drop blocks by normal variables that share a factor, `common`, of shape (n_samples,)."""
    own = rng.standard_normal((len(common), len(rates)))
    latent = np.sqrt(shared) * common[:, None] + np.sqrt(1 - shared) * own
    return np.asarray(latent > norm.ppf(1 - np.asarray(rates)))


def expected_share(rates: Sequence[float], shared: float) -> float:
    """Share of samples of which `factor_mask` leaves every block."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    limits = norm.ppf(1 - np.asarray(rates))[:, None]
    seen = norm.cdf((limits - np.sqrt(shared) * nodes) / np.sqrt(1 - shared))
    return float(weights @ seen.prod(axis=0) / weights.sum())


def calibrate_shared(rates: Sequence[float], share: float) -> float:
    """Correlation at which `factor_mask` leaves this share of complete samples, 0 if none does."""
    if expected_share(rates, 0.0) >= share:
        return 0.0
    return float(brentq(lambda shared: expected_share(rates, shared) - share, 0.0, 0.99))
