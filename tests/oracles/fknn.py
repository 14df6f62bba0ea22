"""FKNN as Du et al. (2024) write it, literally and slowly, on all parties' columns at one place.

Loops over samples and features instead of matrix products, whole sorted lists instead of blocks.
"""

import math

import numpy as np
import pandas as pd


def partial_distance(x_p, x_q):
    """Eq. (6): mean squared difference over the features that both have; None if there is none."""
    total, shared = 0.0, 0
    for a, b in zip(x_p, x_q, strict=True):
        if not math.isnan(a) and not math.isnan(b):
            total += (a - b) ** 2
            shared += 1
    return total / shared if shared else None


def distance(parties, p, q):
    """Eqs. (8) to (10) and (12): root of the parties' distances, summed.

    Parties without a shared feature are left out and the sum is scaled up by K / defined; None if
    no party has one.
    """
    terms = [partial_distance(block[p], block[q]) for block in parties]
    defined = [term for term in terms if term is not None]
    if not defined:
        return None
    return math.sqrt(sum(defined) * len(parties) / len(defined))


def ranking(parties, p):
    """Eq. (12): all other samples in ascending order of distance (the text says descending)."""
    others = [(distance(parties, p, q), q) for q in range(len(parties[0])) if q != p]
    return [q for d, q in sorted((d, q) for d, q in others if d is not None)]


def impute(parties, n_neighbors, n_ranked=None):
    """Eq. (13): the mean of the K nearest samples that have the feature, of the `n_ranked` nearest.

    Shapes: parties (n_samples, n_features of the party): NaN = missing; a sample of which a party
    has no row is a row of NaN.
    """
    imputed = [np.array(block, dtype=float) for block in parties]
    for p in range(len(parties[0])):
        if not any(np.isnan(block[p]).any() for block in parties):
            continue
        order = ranking(parties, p)[:n_ranked]
        for block, out in zip(parties, imputed, strict=True):
            for o in range(block.shape[1]):
                if math.isnan(block[p, o]):
                    having = [block[q, o] for q in order if not math.isnan(block[q, o])]
                    nearest = having[:n_neighbors]
                    out[p, o] = sum(nearest) / len(nearest) if nearest else np.nanmean(block[:, o])
    return imputed


def impute_tables(tables, n_neighbors, n_ranked=None):
    """The same for DataFrames: outer join, impute, and each party's rows of the union back."""
    names = sorted(tables)
    union = pd.Index(pd.unique(np.concatenate([tables[name].index for name in names])))
    blocks = [tables[name].reindex(union).to_numpy(dtype=float) for name in names]
    return {
        name: pd.DataFrame(block, index=union, columns=tables[name].columns)
        for name, block in zip(names, impute(blocks, n_neighbors, n_ranked), strict=True)
    }
