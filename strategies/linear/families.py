"""The exponential families: link, curvature, likelihood.

With the canonical link, the loss of a sample is ``psi(eta) - y eta`` (Tang, Feng, Li and Wang,
Eq. 4.2), its derivative ``psi'(eta) - y`` and its curvature ``psi''(eta)``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, gammaln

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables.codes import level_text

_NEWTON_STEPS = 50
_LONGEST = 2.0  # of a Newton step: farther away the curvature says nothing
_LARGEST = 500.0  # exp of more overflows long before it means anything
_Function = Callable[[Array], Array]  # Of any shape, which it keeps


@dataclass(frozen=True)
class Family:
    """An exponential family with its canonical link."""

    name: str
    check: Callable[[Array], None]  # Raises `DataError` unless labels can come from the family
    cumulant: _Function  # ``psi(eta)``
    mean: _Function  # ``psi'(eta)``, the expected label
    variance_of: _Function  # Of labels of an expectation, over the dispersion
    link: Callable[[float], float]  # The ``eta`` of an expectation
    saturated: _Function  # The largest ``y eta - psi(eta)`` of each label
    # What the log likelihood of each label has beside ``y eta - psi(eta)``
    own_term: _Function = np.zeros_like
    has_dispersion: bool = False  # Of normal labels: the variance of the noise, which is estimated

    def variance(self, eta: Array) -> Array:
        """Return ``psi''(eta)``, the variance of a label over the dispersion."""
        return self.variance_of(self.mean(eta))

    def deviance(self, y: Array, eta: Array, weights: Array | float = 1.0) -> Array:
        """Return twice the log likelihood lost to the saturated model, dispersion 1.

        Shapes: y (n_samples, 1); eta (n_samples, n_columns); weights (n_samples, 1): what samples
        count; returns (n_columns,).
        """
        lost = self.saturated(y) - y * eta + self.cumulant(eta)
        return np.asarray(2.0 * np.sum(weights * lost, axis=0))

    def log_likelihood(self, y: Array, eta: Array) -> float:
        """Return the log likelihood of one fit, both of shape (n_samples,)."""
        if self.has_dispersion:
            variance = max(float(np.mean((y - eta) ** 2)), 1e-300)
            return float(-0.5 * len(y) * (np.log(2 * np.pi * variance) + 1.0))
        return float(np.sum(y * eta - self.cumulant(eta) + self.own_term(y)))

    def null_level(self, y: Array, weights: Array, offset: Array) -> float:
        """Return the best level of the model without columns; shapes as in `log_likelihood`."""
        start = self.link(float(np.average(y, weights=weights)))
        start -= float(np.average(offset, weights=weights))
        columns = y[:, None], offset[:, None], np.array([start]), weights[:, None]
        return float(self.level(*columns)[0])

    def level(self, y: Array, fit: Array, start: Array, weights: Array | float = 1.0) -> Array:
        """Return the intercepts that suit fits best, by safeguarded Newton steps.

        Shapes: y, weights (n_samples, 1); fit (n_samples, n_columns): linear predictors without
        intercept; start (n_columns,); returns (n_columns,).
        """
        if self.has_dispersion:  # normal labels: the means of the residuals
            return np.asarray((weights * (y - fit)).mean(axis=0) / np.mean(weights))
        level = start.copy()
        for _ in range(_NEWTON_STEPS):
            mean = self.mean(fit + level)
            slope = (weights * (mean - y)).mean(axis=0)
            step = slope / np.maximum((weights * self.variance_of(mean)).mean(axis=0), 1e-12)
            step = np.clip(step, -_LONGEST, _LONGEST)
            level -= step
            if np.abs(step).max(initial=0.0) < 1e-12:
                break
        return level


def _check_flags(y: Array) -> None:
    if not np.isin(y, (0.0, 1.0)).all():
        found = np.unique(y)
        shown = ", ".join(level_text(value) for value in found[:5])
        raise DataError(
            f"family 'binomial' needs labels 0 and 1, got {len(found)} different ({shown}"
            f"{', ...' if len(found) > 5 else ''}); code the classes as 0 and 1, or of two state "
            "which counts as 1: positive-label in the run config (positive_label in Python)"
        )


def _check_counts(y: Array) -> None:
    if (y < 0).any() or (y != np.round(y)).any():
        bad = float(y[(y < 0) | (y != np.round(y))][0])
        raise DataError(
            "family 'poisson' needs counts 0, 1, 2, ... as labels, got a label of "
            f"{bad:g}; use family='gaussian' for other numbers"
        )


def _exp(eta: Array) -> Array:
    return np.exp(np.minimum(eta, _LARGEST))


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "gaussian",
            check=lambda y: None,
            cumulant=lambda eta: 0.5 * eta**2,
            mean=lambda eta: eta,
            variance_of=np.ones_like,
            link=lambda mean: mean,
            saturated=lambda y: 0.5 * y**2,  # the deviance is the residual sum of squares
            has_dispersion=True,
        ),
        Family(
            "binomial",
            check=_check_flags,
            cumulant=lambda eta: np.logaddexp(0.0, eta),
            mean=expit,
            variance_of=lambda mean: mean * (1.0 - mean),
            link=lambda mean: float(np.log(mean / (1.0 - mean))),
            saturated=np.zeros_like,  # the deviance is minus twice the log likelihood
        ),
        Family(
            "poisson",
            check=_check_counts,
            cumulant=_exp,
            mean=_exp,
            variance_of=lambda mean: mean,
            link=lambda mean: float(np.log(mean)),
            saturated=lambda y: y * np.log(np.maximum(y, 1.0)) - y,
            own_term=lambda y: -gammaln(y + 1.0),
        ),
    )
}


def check_labels(family: Family, y: Array) -> None:
    """Raise `DataError` unless a model can be fitted to these labels."""
    family.check(y)
    if np.ptp(y) == 0:
        raise DataError(f"the labels of all {len(y)} samples of the fit are the same")


def family_named(name: str) -> Family:
    """Return a family, or raise `ConfigError` listing those there are."""
    if name not in FAMILIES:
        raise ConfigError(f"unknown family {name!r}; expected one of {list(FAMILIES)}")
    return FAMILIES[name]
