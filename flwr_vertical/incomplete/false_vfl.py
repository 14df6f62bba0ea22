"""The mechanisms of FALSE-VFL: MAR types 1 and 2, and MNAR.

Hong, Park and Hwang: *Deep Latent Variable Model based Vertical Federated Learning with Flexible
Alignment and Labeling Scenarios*, Section 5.1 and Appendix D.3. Where the paper is silent: the
variance of a piece is the population variance (`ddof=0`) of one sample's standardised features at
one party, so a party with one column has variance 0; "normalized" is mean 0 and variance 1 for each
column over the samples given.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.incomplete._inputs import Mask, Seed, checked_rate, generator, numeric_blocks
from flwr_vertical.incomplete.apply import at_least_one_party


def mar_blocks_1(
    tables: Mapping[str, pd.DataFrame],
    *,
    threshold: float = 1.1,
    decrement: float = 0.15,
    standardize: bool = True,
    seed: Seed = 0,
) -> Mask:
    """Observe parties in random order until one is informative enough (Algorithm 1, MAR 1).

    Each sample visits the parties in its own uniformly random order. If the variance v of the
    visited block exceeds the threshold, the blocks not visited yet are missing; otherwise the
    threshold falls by `decrement` and the next party is visited.

    At least one block of each sample is observed, and whether a block is depends on observed blocks
    only.

    Parameters
    ----------
    threshold : float, default 1.1
        Initial variance threshold T.
    decrement : float, default 0.15
        What T loses at each visit.
    """
    variance = _block_variances(tables, standardize)
    order = _visits(variance.shape, generator(seed, "mar_blocks_1"))
    mask = np.ones(variance.shape, dtype=np.bool_)
    rows = np.arange(len(variance))
    for visit in range(variance.shape[1]):
        party = order[rows, visit]
        mask[rows, party] = False
        rows = rows[variance[rows, party] <= threshold]
        threshold -= decrement
    return mask


def mar_blocks_2(
    tables: Mapping[str, pd.DataFrame],
    *,
    threshold: float = 0.5,
    budget: float = 0.7,
    decrement: float = 0.15,
    standardize: bool = True,
    seed: Seed = 0,
) -> Mask:
    """Observe parties in random order until their information is used up (Algorithm 2, MAR 2).

    As MAR 1, but a visited block whose variance v exceeds the threshold T takes v - T from the
    budget, and the visits end when the budget is at most 0 (the algorithm's condition; the paper's
    text says below 0). T falls by `decrement` at each visit that does not end them.

    At least one block of each sample is observed.

    Parameters
    ----------
    threshold, decrement
        As of `mar_blocks_1`.
    budget : float, default 0.7
        Excessive variance B that a sample may reveal; the paper takes 0.5 for ModelNet10.
    """
    variance = _block_variances(tables, standardize)
    order = _visits(variance.shape, generator(seed, "mar_blocks_2"))
    mask = np.ones(variance.shape, dtype=np.bool_)
    rows = np.arange(len(variance))
    left = np.full(len(variance), float(budget))
    for visit in range(variance.shape[1]):
        party = order[rows, visit]
        mask[rows, party] = False
        left[rows] -= np.maximum(variance[rows, party] - threshold, 0.0)
        rows = rows[left[rows] > 0]
        threshold -= decrement
    return mask


def mnar_blocks(
    tables: Mapping[str, pd.DataFrame],
    p: float = 0.7,
    *,
    keep_one: bool = False,
    standardize: bool = True,
    seed: Seed = 0,
) -> Mask:
    """Drop a block by the sign of its own mean (Section 5.1, MNAR).

    With x̄ the mean of a sample's standardised features at a party, the block is missing with
    probability p if x̄ < 0 and 1 - p otherwise, independently of the other parties.

    Parameters
    ----------
    p : float, default 0.7
        The paper's MNAR 7; 0.9 is its MNAR 9.
    keep_one : bool, default False
        Whether to give samples without any block one back (see `at_least_one_party`). The paper's
        Section 3.1 assumes that each sample has one, its Section 5.1 states the probabilities
        without.
    """
    p = checked_rate(p, "p")
    blocks = numeric_blocks(tables, standardize=standardize)
    means = np.column_stack([block.mean(axis=1) for block in blocks])
    rng = generator(seed, "mnar_blocks")
    mask: Mask = rng.random(means.shape) < np.where(means < 0, p, 1.0 - p)
    return at_least_one_party(mask, seed=rng) if keep_one else mask


def _block_variances(tables: Mapping[str, pd.DataFrame], standardize: bool) -> Array:
    """Return the variance of each sample's features at each party, shape (n_samples, n_parties)."""
    blocks = numeric_blocks(tables, standardize=standardize)
    return np.column_stack([block.var(axis=1) for block in blocks])


def _visits(shape: tuple[int, ...], rng: np.random.Generator) -> Integers:
    """Draw for each sample a random order of the parties, shape (n_samples, n_parties)."""
    parties = np.broadcast_to(np.arange(shape[1]), shape)
    return rng.permuted(parties, axis=1)
