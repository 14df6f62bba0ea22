"""What a forest draws: the same wherever it is drawn, from a seed of the run."""

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Integers

_ROWS, _COLUMNS = 0, 1


def weights_of(seed: int, draw: int, n_fit: int, bootstrap: bool) -> Integers:
    """Return how often a tree has each row of the fit, shape (n_fit,)."""
    if not bootstrap:
        return np.ones(n_fit, dtype=np.int64)
    rng = np.random.default_rng([seed, _ROWS, draw])
    return np.bincount(rng.integers(n_fit, size=n_fit), minlength=n_fit)


def columns_of(seed: int, batch: int, n_columns: int, share: float) -> npt.NDArray[np.uint8]:
    """Return which columns of all parties the trees of a batch may use, 0 or 1."""
    chosen = np.ones(n_columns, dtype=np.uint8)
    count = max(1, round(share * n_columns))
    if count < n_columns:
        rng = np.random.default_rng([seed, _COLUMNS, batch])
        chosen[rng.permutation(n_columns)[count:]] = 0
    return chosen
