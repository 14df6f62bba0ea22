"""Regressions of the label on any columns, from one fitted joint distribution."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Regression:
    """The label's regression on some of the columns.

    Parameters
    ----------
    columns : numpy.ndarray of shape (n_used,)
        Which.
    intercept : float
    beta : numpy.ndarray of shape (n_used,)
    noise : float
        Variance of the label about it.
    vcov : numpy.ndarray of shape (n_used + 1, n_used + 1)
        Covariance matrix of the estimates of (intercept, beta).
    mean_variance : float
        Variance of the fit through these estimates, on average over the rows.
    """

    columns: Indices
    intercept: float
    beta: Array
    noise: float
    vcov: Array
    mean_variance: float


@dataclass(frozen=True)
class Joint:
    """A normal distribution of all columns and the label, with how exactly it is known.

    Parameters
    ----------
    mean : numpy.ndarray of shape (n_columns,)
        The label last.
    covariance : numpy.ndarray of shape (n_columns, n_columns)
    directions : numpy.ndarray of shape (n_columns, n_columns, n_parameters)
        Derivatives of the covariance by its parameters.
    inverse : numpy.ndarray of shape (n_columns + n_parameters, n_columns + n_parameters)
        Covariance matrix of the estimates of mean and parameters.
    """

    mean: Array
    covariance: Array
    directions: Array
    inverse: Array

    def regress(self, columns: Indices) -> Regression:
        """Regress the label on some columns; errors by the delta method.

        Parameters
        ----------
        columns : numpy.ndarray of shape (n_used,)
            Numbers of columns, without the label; may be none.
        """
        d, n_parameters = len(self.mean), self.directions.shape[2]
        inner = self.covariance[np.ix_(columns, columns)]
        outer = self.covariance[columns, -1]
        beta = np.linalg.solve(inner, outer)
        # d beta = inner^-1 (d outer - d inner beta); the intercept is mean_y - mean' beta.
        moved = self.directions[columns, -1] - np.einsum(
            "ijk,j->ik", self.directions[np.ix_(columns, columns)], beta
        )
        by_parameters = np.linalg.solve(inner, moved)
        jacobian = np.zeros((len(columns) + 1, d + n_parameters))
        jacobian[1:, d:] = by_parameters
        jacobian[0, columns], jacobian[0, d - 1] = -beta, 1.0
        jacobian[0, d:] = -self.mean[columns] @ by_parameters
        vcov = jacobian @ self.inverse @ jacobian.T
        own = np.append(1.0, self.mean[columns])
        spread = float(np.einsum("ij,ji->", inner, vcov[1:, 1:])) + float(own @ vcov @ own)
        return Regression(
            columns=columns,
            intercept=float(self.mean[-1] - self.mean[columns] @ beta),
            beta=np.asarray(beta, dtype=np.float64),
            noise=float(self.covariance[-1, -1] - beta @ outer),
            vcov=np.asarray(vcov, dtype=np.float64),
            mean_variance=spread,
        )
