"""A mechanism with noise, two tables to run it on, and what tells them apart best."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array
from flwr_vertical.grading.audit import Audit, audit_epsilon
from flwr_vertical.privacy import Keystream, seeded_noise
from flwr_vertical.privacy.keystream import fresh_keystream

Scores = Callable[[int, int, Keystream], Array]
"""From which of two tables (0 or 1), number of runs and key stream to one number for each run."""


def each_run(score: Callable[..., float]) -> Callable[..., Array]:
    """Return scores of many runs, `score` (of anything, a table and a key stream) being one's."""

    @wraps(score)
    def scores(*given: Any) -> Array:
        *first, n_runs, stream = given
        return np.array([score(*first, stream) for _ in range(n_runs)], dtype=float)

    return scores


@dataclass(frozen=True)
class Mechanism:
    """Something that is told with noise."""

    name: str  # What is told
    differ: str  # In what the two tables differ
    epsilon: float  # Stated, of that difference
    # Runs the mechanism; one number tells of each outcome which table it is likelier from
    scores: Scores
    delta: float = 0.0  # Stated
    # Whether outcomes that are not rare attain epsilon, so that the bound must be above half
    tight: bool = False
    cost: float = 1.0  # Of one run, relative to others; runs are divided by it
    holds: bool = True  # Whether it promises epsilon at all


def audit(mechanism: Mechanism, n_runs: int, seed: int, confidence: float = 0.99) -> Audit:
    """Return the lower bound of epsilon from so many seeded runs on each of the two tables."""
    n_runs = max(int(n_runs / mechanism.cost), 100)
    with seeded_noise(seed):
        one, two = (
            mechanism.scores(table, n_runs, fresh_keystream(f"{mechanism.name} {table}"))
            for table in (0, 1)
        )
    return audit_epsilon(one, two, mechanism.delta, confidence)


def laplace_loss(noisy: npt.ArrayLike, one: npt.ArrayLike, two: npt.ArrayLike) -> float:
    """Return by how much noisy counts are nearer to the counts of one table than of another."""
    noisy, one, two = (np.asarray(counts, dtype=float) for counts in (noisy, one, two))
    return float(np.sum(np.abs(noisy - two) - np.abs(noisy - one)))
