"""The paper's generator (Section 5.1): mixed columns from a mixture of normals, sparse effects.

What the paper does not say is in the preset, with the reason: how many columns of each kind, the
number and weights of the multinomial's levels, and where the random order of the columns may put
the label's level.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, softmax

from flwr_vertical.arrays import Array, Integers

KINDS = ("continuous", "multinomial", "ordinal", "binary")
LINEAR, LOGISTIC = "linear", "logistic"
MODELS = (LINEAR, LOGISTIC)
_MEANS = (0.0, -1.0, 1.0)  # of the mixture's components
_TRIES = 10_000


@dataclass(frozen=True)
class CopulaSample:
    """A complete data set, split by parties."""

    tables: dict[str, pd.DataFrame]  # On a common index
    labels: "pd.Series[float]"  # On the same index
    truth: "pd.Series[float]"  # Coefficients, index (party, variable)
    kinds: "pd.Series[str]"  # Kind of each column, same index


def effects(design: dict[str, Any]) -> Array:
    """Return the coefficients, party by party: ``(-1)^j effect``, then zeros."""
    size = design["columns"] // design["parties"]
    j = np.arange(1, size + 1)
    own = np.where(j <= np.ceil(design["sparsity"] * size), (-1.0) ** j * design["effect"], 0.0)
    return np.tile(own, design["parties"])


def component_covariances(owner: Integers) -> list[Array]:
    """Return the three covariance matrices; `owner` is the party of each column."""
    p = len(owner)
    blocks = np.where(np.equal.outer(owner, owner), 0.3, 0.1)
    np.fill_diagonal(blocks, 1.0)
    lag = np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    band = np.select([lag == 0, lag == 1, lag == 2], [1.0, 0.5, 0.25], 0.0)
    return [blocks, 0.5**lag, band]


def column_order(design: dict[str, Any], rng: np.random.Generator) -> Integers:
    """Shuffle the columns until the expected predictor is within ``level`` of 0."""
    weights = np.asarray(design["level_weights"], dtype=np.float64)
    # The mixture is symmetric around 0 and so are the weights: every mean is that at 0.
    means = np.array([0.0, 1.0 + softmax(weights) @ np.arange(len(weights)), 2.0, 0.5])
    by_column = np.repeat(means, design["kinds"])
    beta = effects(design)
    for _ in range(_TRIES):
        order = rng.permutation(design["columns"])
        if abs(by_column[order] @ beta) <= design["level"]:
            break
    return order


def draw_copula(
    design: dict[str, Any], *, model: str = LINEAR, rows: int = 1000, seed: int = 0
) -> CopulaSample:
    """Draw one data set."""
    rng = np.random.default_rng([seed, rows, MODELS.index(model)])
    p, n_parties = design["columns"], design["parties"]
    order = column_order(design, rng)
    owner = np.empty(p, dtype=np.int64)
    owner[order] = np.arange(p) // (p // n_parties)
    component = rng.choice(len(_MEANS), size=rows, p=design["mixture"])
    latent = rng.standard_normal((rows, p))
    for number, matrix in enumerate(component_covariances(owner)):
        chosen = component == number
        latent[chosen] = _MEANS[number] + latent[chosen] @ np.linalg.cholesky(matrix).T
    kind = np.repeat(np.arange(len(KINDS)), design["kinds"])
    weights = np.asarray(design["level_weights"], dtype=np.float64)
    X = _observed(latent, kind, weights, rng)[:, order]
    beta = effects(design)
    eta = X @ beta
    if model == LINEAR:
        y = eta + rng.standard_normal(rows)
    else:
        y = (rng.random(rows) < expit(eta)).astype(np.float64)
    size = p // n_parties
    parties = [f"c{k + 1}" for k in range(n_parties)]
    names = [f"x{j + 1}" for j in range(size)]
    index = pd.MultiIndex.from_product([parties, names], names=["party", "variable"])
    kinds = pd.Series([KINDS[k] for k in kind[order]], index=index)
    tables = {}
    for k, party in enumerate(parties):
        frame = pd.DataFrame(X[:, k * size : (k + 1) * size], columns=pd.Index(names))
        counts = [name for name in names if kinds[party, name] != KINDS[0]]
        tables[party] = frame.astype(dict.fromkeys(counts, np.int64))
    labels = pd.Series(y, name="y")
    return CopulaSample(tables, labels, pd.Series(beta, index=index), kinds)


def _observed(latent: Array, kind: Integers, weights: Array, rng: np.random.Generator) -> Array:
    """Turn latent columns into columns of their kinds, shape (n_samples, n_columns)."""
    X = latent.copy()
    several = latent[:, kind == 1]
    chances = softmax(several[:, :, None] * weights, axis=2).cumsum(axis=2)
    drawn = rng.random(several.shape)
    X[:, kind == 1] = 1.0 + (drawn[:, :, None] > chances[:, :, :-1]).sum(axis=2)
    X[:, kind == 2] = rng.poisson(np.maximum(2.0 + 0.3 * latent[:, kind == 2], 0.0))
    few = latent[:, kind == 3]
    X[:, kind == 3] = rng.random(few.shape) < expit(0.5 * few)
    return X
