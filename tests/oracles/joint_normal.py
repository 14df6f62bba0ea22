"""A joint normal model from pairs of columns at one place, row by row: what federation must equal.

Plain loops over parties, rows and cells; no blocks, precision matrices or rounding.
"""

from itertools import combinations

import numpy as np
from oracles.normal import em
from oracles.scoring import completed


def centre(column):
    """A multiple of a quarter of a power of two at or above the standard deviation."""
    unit = 2.0 ** np.ceil(np.log2(np.nanstd(column)))
    return np.round(np.nanmean(column) / unit * 4) / 4 * unit


def differs(x, held):
    """Chi-squared over its degrees of freedom: do means differ between two sets of rows?"""
    whole = ~np.isnan(x).any(axis=1)
    x, first, second = x[whole], x[whole & held], x[whole & ~held]
    within = len(first) * np.cov(first.T, bias=True) + len(second) * np.cov(second.T, bias=True)
    gap = first.mean(axis=0) - second.mean(axis=0)
    n, p = len(x), x.shape[1]
    distance = gap @ np.linalg.solve(np.reshape(within / n, (p, p)), gap)
    return distance * len(first) * len(second) / n / p


def covariance_of_pairs(parties):
    """Means and covariance of all columns, from the maximum of each two parties' likelihood.

    A party's own are those of its rows, moved by what pairs say, rounded to their errors.

    Shapes: parties (n_rows, n_columns of the party): a row that a party lacks is NaN throughout.
    """
    x = np.concatenate(parties, axis=1)
    p, party = x.shape[1], np.repeat(np.arange(len(parties)), [b.shape[1] for b in parties])
    c, size = np.array([centre(x[:, i]) for i in range(p)]), np.nanstd(x, axis=0)
    z = (x - c) / size
    held = np.stack([~np.isnan(block).all(axis=1) for block in parties], axis=1)
    mean, found, n_rows = np.zeros(p), np.zeros((p, p)), np.zeros((p, p))
    for i, j in np.ndindex(n_rows.shape):
        both = ~np.isnan(x[:, i]) & ~np.isnan(x[:, j])
        n_rows[i, j] = both.sum()
    moved = {k: [] for k in range(len(parties))}
    for k, j in combinations(range(len(parties)), 2):
        either = held[:, k] | held[:, j]
        two = np.flatnonzero((party == k) | (party == j))
        about, of_pair = em(z[np.ix_(either, two)], tol=1e-9)
        deviation = np.sqrt(np.diag(of_pair))
        correlation = of_pair / np.outer(deviation, deviation)
        found[np.ix_(two, two)] = np.where(
            party[two][:, None] != party[two], correlation, found[np.ix_(two, two)]
        )
        for a, b in ((k, j), (j, k)):
            added = held[:, b] & ~held[:, a]
            if added.any():
                rows = held[:, b]
                weight = added.sum() * differs(z[np.ix_(rows, party == b)], held[rows, a])
                at = party[two] == a
                moved[a].append((weight, about[at], deviation[at], correlation[np.ix_(at, at)]))
    for k, pairs in moved.items():
        own = np.flatnonzero(party == k)
        rows = z[np.ix_(held[:, k], own)]
        about, of_own = em(rows)
        deviation = np.sqrt(np.diag(of_own))
        before = about, deviation, of_own / np.outer(deviation, deviation)
        root = np.sqrt(held[:, k].sum())

        def change(i, of, before=before, pairs=pairs, root=root):
            total = sum(w * (of(new[i]) - of(before[i])) for w, *new in pairs)
            return np.rint(total / max(sum(w for w, *_ in pairs), 1e-300) * root) / root

        if pairs:
            before = (
                before[0] + change(0, lambda v: v),
                before[1] * np.exp(change(1, np.log)),
                before[2] + change(2, lambda v: v),
            )
        mean[own] = c[own] + size[own] * before[0]
        size[own] *= before[1]
        found[np.ix_(own, own)] = before[2]
    return mean, found * np.outer(size, size), n_rows


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
