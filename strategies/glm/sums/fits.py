"""How fits are computed, and what the server knows of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array

CONVERGED, EXHAUSTED, SEPARATED = "converged", "max iterations", "separated"
PASSED_OVER = "passed over"


@dataclass(frozen=True)
class Settings:
    """How fits are computed.

    Parameters
    ----------
    penalty : str
        See `penalties`.
    intercept : bool
        Whether there is one.
    tol : float
        The paper's absolute and relative tolerance.
    kkt_tol : float
        Largest violation of optimality, as a root of the sum of squares over all coefficients, in
        units of the labels' standard deviation.
    lla_steps : int
        How often the weights of a concave penalty are made again.
    max_iter : int
        Most rounds.
    fixed : bool
        Take `max_iter` rounds whatever the residuals, without tests, which would tell more than the
        fits; for fits with noise.
    by_bic : bool
        Whether only the fit of the smallest BIC is wanted; others are given up once they are far
        behind.
    """

    penalty: str
    intercept: bool = True
    tol: float = 1e-3
    kkt_tol: float = 1e-4
    lla_steps: int = 3
    max_iter: int = 500
    fixed: bool = False
    by_bic: bool = False


@dataclass
class Fits:
    """The fits of all values of lambda, as the server knows them.

    Parameters
    ----------
    fit : numpy.ndarray of shape (n_samples, n_lambdas)
        Sums of the parties' fits, without intercept.
    level : numpy.ndarray of shape (n_lambdas,)
        Intercepts, of centred columns.
    selected : numpy.ndarray of shape (n_lambdas,)
        How many coefficients are not zero; -1 where nobody asked.
    violation : numpy.ndarray of shape (n_lambdas,)
        Of the optimality conditions, when last tested; infinite if never.
    rounds : numpy.ndarray of shape (n_lambdas,)
        When each fit ended; 0 if it did not.
    tolerated : numpy.ndarray of shape (n_lambdas,)
        When each fit first met the paper's tolerances; 0 if it did not.
    outcomes : list of str
    history : list of dict
        One entry for each round.
    """

    fit: Array
    level: Array
    selected: npt.NDArray[np.int64]
    violation: Array
    rounds: npt.NDArray[np.int64]
    tolerated: npt.NDArray[np.int64]
    outcomes: list[str]
    history: list[dict[str, Any]] = field(default_factory=list)
