"""The regressions of one party alone: the paper's local imputation."""

from collections.abc import Sequence

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.tables import Kind
from strategies.fedpsg.regression.drawing import draw_codes
from strategies.fedpsg.regression.features import Features, n_trees_of
from strategies.fedpsg.regression.targets import GroupSums, Told, jobs_of, solve


def regress_alone(
    own: Array,
    codes: Array,
    kinds: Sequence[Kind | str],
    n_levels: Sequence[int],
    drawn: bool,
    n_trees: int,
    rng: np.random.Generator,
) -> Array:
    """Fill what is missing in a party's table by regressions on the party's own attributes.

    Shapes: own (n_samples, n_columns): as observed: regressions are learnt from rows without a
    missing cell; codes (n_samples, n_columns): to be filled; returns (n_samples, n_columns): NaN
    in columns of which nothing is learnt.
    """
    whole = own[~np.isnan(own).any(axis=1)]
    width = int(np.maximum(n_levels, 1).sum())
    trees = n_trees_of(n_trees, len(whole), width)
    features = Features.fit(own, kinds, n_levels, drawn, trees, int(rng.integers(2**31)))
    columns = features.encode(whole)
    told = {"own": Told(features.attributes, features.n_targets, np.isnan(codes))}
    sums = GroupSums(
        ["own"], np.array([len(whole)]), np.zeros((1, 1), bool), columns.sum(axis=0)[None],
        (columns.T @ columns)[None], np.zeros((1, columns.shape[1]), bool),
    )  # fmt: skip
    out = codes.copy()
    for job in jobs_of(told) if len(whole) else ():
        found = solve(job, told, sums)
        assert found is not None
        weights, result = found
        values = features.encode(codes[job.rows]) @ weights + result.offset
        columns = job.columns.tolist()
        if drawn:
            filled = draw_codes(features, values, columns, result.root, rng)
        else:
            filled = features.decode(values, columns)
        out[np.ix_(job.rows, columns)] = filled
    return out
