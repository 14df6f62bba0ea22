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
    """How fits are computed."""

    penalty: str  # See `penalties`
    intercept: bool = True  # Whether there is one
    tol: float = 1e-3  # The paper's absolute and relative tolerance
    # Largest violation of optimality, as a root of the sum of squares over all coefficients, in
    # units of the labels' standard deviation
    kkt_tol: float = 1e-4
    lla_steps: int = 3  # How often the weights of a concave penalty are made again
    max_iter: int = 500  # Most rounds
    # Take `max_iter` rounds whatever the residuals, without tests, which would tell more than the
    # fits; for fits with noise
    fixed: bool = False
    # Whether only the fit of the smallest BIC is wanted; others are given up once they are far
    # behind
    by_bic: bool = False


@dataclass
class Fits:
    """The fits of all values of lambda, as the server knows them."""

    fit: Array  # (n_samples, n_lambdas): sums of the parties' fits, without intercept
    level: Array  # (n_lambdas,): intercepts, of centred columns
    # (n_lambdas,): how many coefficients are not zero; -1 where nobody asked
    selected: npt.NDArray[np.int64]
    # (n_lambdas,): of the optimality conditions, when last tested; infinite if never
    violation: Array
    rounds: npt.NDArray[np.int64]  # (n_lambdas,): when each fit ended; 0 if it did not
    # (n_lambdas,): when each fit first met the paper's tolerances; 0 if it did not
    tolerated: npt.NDArray[np.int64]
    outcomes: list[str]
    history: list[dict[str, Any]] = field(default_factory=list)  # One entry for each round
