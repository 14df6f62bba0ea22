"""The exponential families: link, curvature, likelihood.

With the canonical link, the loss of a sample is ``psi(eta) - y eta`` (Tang, Feng, Li and Wang,
Eq. 4.2), its derivative ``psi'(eta) - y`` and its curvature ``psi''(eta)``.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from scipy.special import expit, gammaln

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables.codes import level_text

_NEWTON_STEPS = 50
_LONGEST = 2.0  # of a Newton step: farther away the curvature says nothing
_LARGEST = 500.0  # exp of more overflows long before it means anything


class Family(ABC):
    """An exponential family with its canonical link."""

    name: ClassVar[str]
    has_dispersion: ClassVar[bool] = False

    @abstractmethod
    def check(self, y: Array) -> None:
        """Raise `DataError` unless the labels can come from this family."""

    @abstractmethod
    def cumulant(self, eta: Array) -> Array:
        """Return ``psi(eta)``."""

    @abstractmethod
    def mean(self, eta: Array) -> Array:
        """Return ``psi'(eta)``, the expected label."""

    @abstractmethod
    def variance(self, eta: Array) -> Array:
        """Return ``psi''(eta)``, the variance of a label over the dispersion."""

    def moments(self, eta: Array) -> tuple[Array, Array]:
        """Return `mean` and `variance`, which share their work."""
        return self.mean(eta), self.variance(eta)

    @abstractmethod
    def link(self, mean: float) -> float:
        """Return the ``eta`` of an expected label."""

    @abstractmethod
    def saturated(self, y: Array) -> Array:
        """Return the largest ``y eta - psi(eta)`` of each label."""

    def deviance(self, y: Array, eta: Array, weights: Array | float = 1.0) -> Array:
        """Return twice the log likelihood lost to the saturated model, dispersion 1.

        Shapes: y (n_samples, 1); eta (n_samples, n_columns); weights (n_samples, 1): what samples
        count; returns (n_columns,).
        """
        lost = self.saturated(y) - y * eta + self.cumulant(eta)
        return np.asarray(2.0 * np.sum(weights * lost, axis=0))

    def own_term(self, y: Array) -> Array:
        """Return what the log likelihood of each label has beside ``y eta - psi(eta)``."""
        return np.zeros_like(y)

    def log_likelihood(self, y: Array, eta: Array, weights: Array | float = 1.0) -> float:
        """Return the log likelihood of one fit, all of shape (n_samples,)."""
        return float(np.sum(weights * (y * eta - self.cumulant(eta) + self.own_term(y))))

    def null_level(self, y: Array, weights: Array, offset: Array) -> float:
        """Return the best level of the model without columns; shapes as in `log_likelihood`."""
        start = self.link(float(np.average(y, weights=weights)))
        start -= float(np.average(offset, weights=weights))
        columns = y[:, None], offset[:, None], np.array([start]), weights[:, None]
        return float(self.level(*columns)[0])

    def loss(self, y: Array, eta: Array) -> Array:
        """Return the mean of ``psi(eta) - y eta`` (Eq. 4.2); shapes as in `deviance`."""
        return np.asarray(np.mean(self.cumulant(eta) - y * eta, axis=0))

    def level(self, y: Array, fit: Array, start: Array, weights: Array | float = 1.0) -> Array:
        """Return the intercepts that suit fits best, by safeguarded Newton steps.

        Shapes: y, weights (n_samples, 1); fit (n_samples, n_columns): linear predictors without
        intercept; start (n_columns,); returns (n_columns,).
        """
        level = start.copy()
        for _ in range(_NEWTON_STEPS):
            mean, variance = self.moments(fit + level)
            slope = (weights * (mean - y)).mean(axis=0)
            step = slope / np.maximum((weights * variance).mean(axis=0), 1e-12)
            step = np.clip(step, -_LONGEST, _LONGEST)
            level -= step
            if np.abs(step).max(initial=0.0) < 1e-12:
                break
        return level


class Gaussian(Family):
    """Normal labels, identity link."""

    name = "gaussian"
    has_dispersion = True

    def check(self, y: Array) -> None:
        """Any finite labels will do."""

    def cumulant(self, eta: Array) -> Array:
        """Return ``eta^2 / 2``."""
        return 0.5 * eta**2

    def mean(self, eta: Array) -> Array:
        """Return ``eta``."""
        return eta

    def variance(self, eta: Array) -> Array:
        """Return 1."""
        return np.ones_like(eta)

    def link(self, mean: float) -> float:
        """Return the mean itself."""
        return mean

    def saturated(self, y: Array) -> Array:
        """Return ``y^2 / 2``: the deviance is the residual sum of squares."""
        return 0.5 * y**2

    def log_likelihood(self, y: Array, eta: Array, weights: Array | float = 1.0) -> float:
        """Return the log likelihood at the variance of maximum likelihood."""
        variance = max(float(np.mean(weights * (y - eta) ** 2)), 1e-300)
        own = float(np.sum(np.log(np.broadcast_to(weights, y.shape))))
        return float(0.5 * own - 0.5 * len(y) * (np.log(2 * np.pi * variance) + 1.0))

    def level(self, y: Array, fit: Array, start: Array, weights: Array | float = 1.0) -> Array:
        """Return the means of the residuals."""
        return np.asarray((weights * (y - fit)).mean(axis=0) / np.mean(weights))


class Binomial(Family):
    """Labels 0 and 1, logit link."""

    name = "binomial"

    def check(self, y: Array) -> None:
        """Labels must be 0 and 1."""
        if not np.isin(y, (0.0, 1.0)).all():
            found = np.unique(y)
            shown = ", ".join(level_text(value) for value in found[:5])
            raise DataError(
                f"family 'binomial' needs labels 0 and 1, got {len(found)} different ({shown}"
                f"{', ...' if len(found) > 5 else ''}); code the classes as 0 and 1"
            )

    def cumulant(self, eta: Array) -> Array:
        """Return ``log(1 + exp(eta))``."""
        return np.logaddexp(0.0, eta)

    def mean(self, eta: Array) -> Array:
        """Return the probability of a 1."""
        return np.asarray(expit(eta))

    def variance(self, eta: Array) -> Array:
        """Return ``p (1 - p)``."""
        return self.moments(eta)[1]

    def moments(self, eta: Array) -> tuple[Array, Array]:
        """Return both from one evaluation."""
        p = self.mean(eta)
        return p, p * (1.0 - p)

    def link(self, mean: float) -> float:
        """Return the log-odds."""
        return float(np.log(mean / (1.0 - mean)))

    def saturated(self, y: Array) -> Array:
        """Return 0: the deviance is minus twice the log likelihood."""
        return np.zeros_like(y)


class Poisson(Family):
    """Counts, log link."""

    name = "poisson"

    def check(self, y: Array) -> None:
        """Labels must be counts."""
        if (y < 0).any() or (y != np.round(y)).any():
            bad = float(y[(y < 0) | (y != np.round(y))][0])
            raise DataError(
                "family 'poisson' needs counts 0, 1, 2, ... as labels, got a label of "
                f"{bad:g}; use family='gaussian' for other numbers"
            )

    def cumulant(self, eta: Array) -> Array:
        """Return ``exp(eta)``."""
        return np.exp(np.minimum(eta, _LARGEST))

    def mean(self, eta: Array) -> Array:
        """Return ``exp(eta)``."""
        return self.cumulant(eta)

    def variance(self, eta: Array) -> Array:
        """Return ``exp(eta)``."""
        return self.cumulant(eta)

    def moments(self, eta: Array) -> tuple[Array, Array]:
        """Return the same twice."""
        mean = self.mean(eta)
        return mean, mean

    def link(self, mean: float) -> float:
        """Return the logarithm."""
        return float(np.log(mean))

    def saturated(self, y: Array) -> Array:
        """Return ``y log y - y``."""
        return np.asarray(y * np.log(np.maximum(y, 1.0)) - y)

    def own_term(self, y: Array) -> Array:
        """Return ``-log y!``."""
        return np.asarray(-gammaln(y + 1.0))


_ALL: tuple[Family, ...] = (Gaussian(), Binomial(), Poisson())
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}


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
