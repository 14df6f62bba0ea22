"""A regression without an intercept, in the joint normal model: its mean is not free.

Where the label's regression is zero at a point t, the label's mean is ``(mu - t)' beta``.
"""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array
from strategies.linear.moments.covariances import RegressionCovariance


@dataclass(frozen=True)
class Through:
    """The constraint, for a model that has the coefficients among its parameters.

    Parameters
    ----------
    point : numpy.ndarray of shape (n_columns - 1,)
        Values of the columns at which the regression is zero.
    model : RegressionCovariance
        The model that is fitted.
    """

    point: Array
    model: RegressionCovariance

    def mean(self, mean: Array, parameters: Array) -> Array:
        """Return the mean with the label's as the constraint has it, shape (n_columns,)."""
        gap = mean[:-1] - self.point
        return np.append(mean[:-1], gap @ parameters[self.model.coefficients])

    def jacobian(self, mean: Array, parameters: Array) -> Array:
        """Return derivatives of (mean, parameters) by what is free: all but the label's mean."""
        p, n_parameters = len(self.point), len(parameters)
        found = np.zeros((p + 1 + n_parameters, p + n_parameters))
        found[:p, :p] = np.eye(p)
        found[p, :p] = parameters[self.model.coefficients]
        found[p, p:][self.model.coefficients] = mean[:-1] - self.point
        found[p + 1 :, p:] = np.eye(n_parameters)
        return found

    def curvature(self, pull: float, parameters: Array) -> Array:
        """Return second derivatives of the label's mean, times the score for it."""
        p, n_parameters = len(self.point), len(parameters)
        found = np.zeros((p + n_parameters, p + n_parameters))
        at = np.arange(n_parameters)[self.model.coefficients] + p
        found[np.arange(p), at] = found[at, np.arange(p)] = pull
        return found
