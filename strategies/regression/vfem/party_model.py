"""What a party of VFEM keeps of the model on its own disk."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical import Model

Array = npt.NDArray[np.float64]

_TOLERANCE = 1e-9  # of coefficients that went through a CSV file


@dataclass
class VFEMPart(Model):
    """A party's own coefficients, in units of standardised labels, and its columns' distribution.

    Parameters
    ----------
    columns : list of str
        Columns of the fit, ``column=level`` for a level.
    beta : numpy.ndarray of shape (n_columns,)
        Coefficients per unit of the column.
    center, scale : numpy.ndarray of shape (n_columns,)
        What was subtracted from each column, and what it was divided by.
    mean : numpy.ndarray of shape (n_columns,)
        Mean of a row under the model, standardised.
    covariance : numpy.ndarray of shape (n_columns, n_columns)
        Covariance of a row under the model, standardised.
    """

    strategy = "vfem"

    columns: list[str]
    beta: Array
    center: Array
    scale: Array
    mean: Array
    covariance: Array

    def is_behind(self, names: list[str], beta: Array) -> bool:
        """Whether coefficients are these, up to the unit of the labels, which the server knows.

        Parameters
        ----------
        names : list of str
            Columns.
        beta : numpy.ndarray of shape (n_columns,)
            Their coefficients.
        """
        if list(names) != self.columns or np.shape(beta) != self.beta.shape:
            return False
        square = float(self.beta @ self.beta)
        unit = float(beta @ self.beta) / square if square else 0.0
        largest = float(np.abs(beta).max(initial=0.0))
        return unit >= 0 and bool(np.all(np.abs(beta - unit * self.beta) <= _TOLERANCE * largest))
