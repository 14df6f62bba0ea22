"""Association rules: from counts of pairs of values to the value that is generated.

Liu, He, Tan et al., Section 3.2 (2) and (3): ``beta[k, q]`` is the share of the aligned samples
with value k of the source that have value q of the target. The paper generates the value with the
largest share, a random one where several are equally large.
"""

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Indices
from strategies.fedpsg.value_groups import NONE

Weights = npt.NDArray[np.uint16]

RULES = ("argmax", "mean", "draw")
STEPS = 255
"""Shares travel in so many steps: exact ones would tell counts that are kept back."""


def kept_counts(counts: Indices, minimum: int) -> Indices:
    """Return the counts, 0 where they are below the minimum."""
    return np.where(counts >= minimum, counts, 0)


def shares(counts: Indices) -> Array:
    """Return ``beta``: each row divided by its sum, 0 where that is 0."""
    total = counts.sum(axis=1, keepdims=True)
    beta: Array = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    return beta


def weights_of(counts: Indices, rule: str) -> Weights:
    """Return what a party is given of the rules.

    Shapes: counts (n_source, n_target): of `kept_counts`; returns (n_source, n_target): A row of
    zeros where there is no rule.
    """
    if rule == "argmax":
        largest = counts.max(axis=1, keepdims=True, initial=0)
        weights: Weights = ((counts == largest) & (counts > 0)).astype(np.uint16)
    else:
        weights = np.rint(STEPS * shares(counts)).astype(np.uint16)
    return weights


def draw_groups(weights: Weights, sources: Indices, rng: np.random.Generator) -> Indices:
    """Draw a group of the target for each sample.

    Shapes: weights (n_source, n_target): of `weights_of`; sources (n,): the source's group of each
    sample; `NONE` where it is in none; returns (n,): `NONE` where there is no rule.
    """
    u = rng.random(len(sources))
    out = np.full(len(sources), NONE, dtype=np.int64)
    for group, row in enumerate(weights):
        here = sources == group
        ends = np.cumsum(row, dtype=np.float64)
        if here.any() and row.any():
            out[here] = np.searchsorted(ends, u[here] * ends[-1], side="right")
    return out


def with_rule(weights: Weights, sources: Indices) -> Indices:
    """Return the source's group of each sample, `NONE` where it has no rule."""
    known = np.append(weights.any(axis=1), False)  # the last stands for NONE
    return np.where(known[sources], sources, NONE)
