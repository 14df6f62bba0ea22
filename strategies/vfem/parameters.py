"""A party's part of the model, and the coordinates in which it is extrapolated."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array


@dataclass(frozen=True)
class BlockParameters:
    """Coefficients of a party's columns and the normal distribution of its rows."""

    beta: Array  # (n_columns,): regression coefficients
    mean: Array  # (n_columns,): mean of a row
    covariance: Array  # (n_columns, n_columns): covariance of a row, positive definite

    @property
    def loading(self) -> Array:
        """Covariance of a row with its own fit, ``covariance @ beta``, shape (n_columns,)."""
        return self.covariance @ self.beta

    @property
    def explained(self) -> float:
        """Variance of the party's fit, ``beta' covariance beta``."""
        return float(self.beta @ self.covariance @ self.beta)

    @property
    def mean_fit(self) -> float:
        """Mean of the party's fit, ``mean' beta``."""
        return float(self.mean @ self.beta)

    @property
    def coordinates(self) -> Array:
        """One unconstrained vector, shape (2 p + p (p + 1) / 2,): see `from_coordinates`.

        The covariance enters by its Cholesky factor with the logarithms of its diagonal, so that
        every point of a line through two of these vectors is a valid set of parameters.
        """
        factor = np.linalg.cholesky(self.covariance)
        diagonal = np.diag_indices_from(factor)
        factor[diagonal] = np.log(factor[diagonal])
        lower = np.tril_indices_from(factor)
        return np.concatenate([self.beta, self.mean, factor[lower]])

    @classmethod
    def from_coordinates(cls, coordinates: Array, n_columns: int) -> "BlockParameters":
        """Undo `coordinates`."""
        factor = np.zeros((n_columns, n_columns))
        factor[np.tril_indices(n_columns)] = coordinates[2 * n_columns :]
        diagonal = np.diag_indices(n_columns)
        # A wild extrapolation must end in a bad likelihood, not in an overflow.
        factor[diagonal] = np.exp(np.clip(factor[diagonal], -50.0, 50.0))
        return cls(
            coordinates[:n_columns].copy(),
            coordinates[n_columns : 2 * n_columns].copy(),
            factor @ factor.T,
        )
