"""How private a mechanism is at least not: a lower bound of epsilon from many runs.

Two tables that differ in one row are given to the mechanism, many times each. If an outcome is much
more frequent with one than with the other, epsilon cannot be small. A bound above the stated
epsilon shows an error; a bound far below shows nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError


@dataclass(frozen=True)
class Audit:
    """What many runs on two neighbouring tables show."""

    epsilon: float  # Lower bound, at the stated confidence
    confidence: float  # Of the bound
    n_runs: int  # On each table
    threshold: float  # The outcome is a score on one side of it


def audit_epsilon(
    scores: npt.ArrayLike,
    neighbour_scores: npt.ArrayLike,
    delta: float = 0.0,
    confidence: float = 0.99,
) -> Audit:
    """Return a lower bound of epsilon from scores of a mechanism's outputs on two tables.

    The first half of the runs chooses the outcome (a score above or below some threshold), the
    second half counts it, so that the bound holds. By the definition of differential privacy,
    ``P(outcome) <= exp(epsilon) P'(outcome) + delta``; both chances are bounded after Clopper and
    Pearson (1934), as in Jagielski et al. (2020), "Auditing Differentially Private Machine
    Learning".

    Shapes: scores, neighbour_scores (n_runs,): one number for each run, such as the likelihood
    ratio or the released number itself.
    """
    from scipy.stats import beta

    one, two = (np.asarray(s, dtype=np.float64) for s in (scores, neighbour_scores))
    n_runs = min(len(one), len(two))
    if n_runs < 100:
        raise DataError(f"an audit takes 100 runs on each table or more, got {n_runs}")
    one, two = one[:n_runs], two[:n_runs]
    n_first = n_runs // 2
    n_second = n_runs - n_first
    risk = (1.0 - confidence) / 2  # two intervals

    def bound(n_hits: Any, n_neighbour_hits: Any, n: int) -> Array:
        low = np.where(n_hits > 0, beta.ppf(risk, n_hits, n - n_hits + 1), 0.0)
        high = np.where(
            n_neighbour_hits < n, beta.ppf(1 - risk, n_neighbour_hits + 1, n - n_neighbour_hits), 1
        )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(low - delta, 0.0) / high))

    best, chosen = -np.inf, (one, two, 0.0, 1.0)
    for a, b in ((one, two), (two, one)):
        for sign in (1.0, -1.0):
            first, second = np.sort(sign * a[:n_first]), np.sort(sign * b[:n_first])
            at = np.unique(np.concatenate([first, second]))
            hits, others = (n_first - np.searchsorted(s, at) for s in (first, second))
            found = bound(hits, others, n_first)
            k = int(np.argmax(found))
            if found[k] > best:
                best, chosen = float(found[k]), (a, b, float(at[k]), sign)
    a, b, threshold, sign = chosen
    hits, others = (np.array((sign * s[n_first:] >= threshold).sum()) for s in (a, b))
    epsilon = max(0.0, float(bound(hits, others, n_second)))
    return Audit(epsilon, confidence, n_runs, sign * threshold)
