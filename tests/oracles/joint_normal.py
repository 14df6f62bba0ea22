"""A joint normal model from pairs of columns at one place, row by row: what federation must equal.

Plain loops over parties, rows and cells; no blocks, precision matrices or rounding.
"""

import numpy as np
from oracles.scoring import completed


def centre(column):
    """A multiple of a quarter of a power of two at or above the standard deviation."""
    unit = 2.0 ** np.ceil(np.log2(np.nanstd(column)))
    return np.round(np.nanmean(column) / unit * 4) / 4 * unit


def covariance_of_pairs(parties):
    """Means and covariance of all columns, each covariance over the rows that have both.

    Products are about coarse centres c, less the product of what is left of the means:
    ``mean over both of (x - c)(y - d)  -  (mean of x - c)(mean of y - d)``.

    Shapes: parties (n_rows, n_columns of the party): a row that a party lacks is NaN throughout.
    """
    x = np.concatenate(parties, axis=1)
    p = x.shape[1]
    c = np.array([centre(x[:, i]) for i in range(p)])
    gap = np.nanmean(x - c, axis=0)
    found, n_rows = np.zeros((p, p)), np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            both = ~np.isnan(x[:, i]) & ~np.isnan(x[:, j])
            found[i, j] = ((x[both, i] - c[i]) * (x[both, j] - c[j])).mean() - gap[i] * gap[j]
            n_rows[i, j] = both.sum()
    return c + gap, found, n_rows


def repaired(covariance, n_rows, party):
    """Correlations across parties rounded, eigenvalues up to what that adds, then shrunk.

    The weight of the identity is that of Chen et al. (2010), Eq. 23.
    """
    size = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(size, size)
    for i, j in np.ndindex(correlation.shape):
        if party[i] != party[j]:
            root = np.sqrt(n_rows[i, j])
            correlation[i, j] = np.rint(correlation[i, j] * root) / root
    values, vectors = np.linalg.eigh(correlation)
    floor = max(1e-3, np.sqrt(len(correlation) / (12 * n_rows.mean())))
    correlation = vectors @ np.diag(np.maximum(values, floor)) @ vectors.T
    scale = np.sqrt(np.diag(correlation))
    correlation = correlation / np.outer(scale, scale)
    p = len(correlation)
    off = ~np.eye(p, dtype=bool)
    n = 1.0 / np.mean(1.0 / n_rows[off])
    of_square = np.trace(correlation @ correlation)
    above = (1 - 2 / p) * of_square + p**2
    below = (n + 1 - 2 / p) * (of_square - p)
    weight = min(1.0, above / below)
    shrunk = (1 - weight) * correlation + weight * np.eye(p)
    return shrunk * np.outer(size, size), weight


def complete(parties):
    """Every party's rows, missing cells replaced by conditional means given all that is held."""
    mean, covariance, n_rows = covariance_of_pairs(parties)
    party = np.repeat(np.arange(len(parties)), [block.shape[1] for block in parties])
    covariance, weight = repaired(covariance, n_rows, party)
    x = np.concatenate(parties, axis=1)
    filled = np.where(np.isnan(x), mean + completed(x, mean, covariance), x)
    ends = np.cumsum([block.shape[1] for block in parties])[:-1]
    return np.split(filled, ends, axis=1), covariance, weight
