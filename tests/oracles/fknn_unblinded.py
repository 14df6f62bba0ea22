"""FKNN without blinding, on all parties' tables at one place: what blinding must not change.

Distances and imputation are the method's own, in the same blocks; ranks are taken from the plain
sums of distances, each row's in one stable sort. So that results can be compared to the bit.
"""

import numpy as np
import pandas as pd

from flwr_vertical import Table
from flwr_vertical.tables import is_numeric
from flwr_vertical.tables.codes import fill_values, fit_levels, from_codes, to_codes
from strategies.fknn.distances import make_features, party_terms, squared_distances
from strategies.fknn.neighbours import impute_column


def aligned_tables(tables):
    """Return the union of IDs, in order of first appearance, and each party's table and codes."""
    names = sorted(tables)
    union = pd.Index(pd.unique(np.concatenate([tables[name].index for name in names])))
    parts = {}
    for name in names:
        table = Table.of(tables[name])
        levels = fit_levels([table])
        codes = np.full((len(union), len(table.columns)), np.nan)
        codes[union.get_indexer(table.ids)] = to_codes(table, levels, name)
        parts[name] = table, levels, codes
    return union, parts


def features_of(table, levels, codes, standardize, rows):
    kinds = list(table.kinds.values())
    n_levels = [0 if is_numeric(kind) else len(levels[c]) for c, kind in table.kinds.items()]
    return make_features(codes, kinds, n_levels, standardize, rows)


def summed_distances(tables, weighting="party-mean", standardize=False):
    """Return the parties' distances, weights and the rows with a cell missing anywhere."""
    union, parts = aligned_tables(tables)
    needs = np.zeros(len(union), dtype=bool)
    for _, _, codes in parts.values():
        needs |= np.isnan(codes).any(axis=1)
    rows = np.flatnonzero(needs)
    total, weights = np.zeros((2, len(rows), len(union)))
    for name, (table, levels, codes) in parts.items():
        own = union.isin(tables[name].index)
        features = features_of(table, levels, codes, standardize, own)
        distance, weight = party_terms(
            *squared_distances(features, rows, features.donors()), weighting
        )
        total += distance
        weights += weight
    return rows, total, weights


def impute(tables, n_neighbors, weighting="party-mean", standardize=False):
    """Return by party the imputed rows of the union, in its order."""
    union, parts = aligned_tables(tables)
    rows, total, weights = summed_distances(tables, weighting, standardize)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(weights > 0, total / weights, np.inf)
    ratio[np.arange(len(rows)), rows] = np.inf
    # 33 bits count: rounding errors tell no two distances apart.
    bits = ratio.view(np.int64)
    bits += 1 << 19
    bits &= -(1 << 20)
    ranking = np.argsort(ratio, axis=1, kind="stable").astype(np.int32)
    ranking[~np.isfinite(np.take_along_axis(ratio, ranking, axis=1))] = -1
    imputed = {}
    for name, (table, levels, codes) in parts.items():
        full = codes.copy()
        fallback = fill_values(codes, table.kinds)
        for j, kind in enumerate(table.kinds.values()):
            here = np.flatnonzero(np.isnan(codes[rows, j]))
            width = min(len(union), 4 * n_neighbors + 20)
            while len(here):  # lists of the lengths that the method uses: sums are rounded alike
                listed = ranking[here, :width]
                values, used = impute_column(codes[:, j], kind, listed, None, n_neighbors)
                done = (used >= n_neighbors) | (listed < 0).any(axis=1) | (width >= len(union))
                values = np.where(used > 0, values, fallback[j])
                full[rows[here[done]], j] = values[done]
                here, width = here[~done], min(len(union), 4 * width)
        imputed[name] = from_codes(full, table, levels, union)
    return imputed
