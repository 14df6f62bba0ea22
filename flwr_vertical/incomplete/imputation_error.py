"""How close imputed values come to the truth, where somebody knows it."""

import numpy as np
import pandas as pd
from pandas.api import types


def imputation_accuracy(
    incomplete: pd.DataFrame, imputed: pd.DataFrame, truth: pd.DataFrame
) -> dict[str, float]:
    """Compare the cells that were filled in with their true values.

    Parameters
    ----------
    incomplete : pandas.DataFrame of shape (n_samples, n_columns)
        The table before; a sample without a row counts as missing altogether.
    imputed : pandas.DataFrame of shape (n_rows, n_columns)
        The table afterwards.
    truth : pandas.DataFrame
        The complete table, indexed by sample ID; what it does not hold is not compared.

    Returns
    -------
    dict[str, float]
        ``rmse-in-sd``: root mean squared error of numeric cells, each in standard deviations of
        its column's true values, so that filling in the mean gives about 1. ``share-right``:
        share of all other cells that were hit. Either is absent if there is no such cell.
    """
    shared = imputed.index.intersection(truth.index)
    before, after = incomplete.reindex(shared), imputed.loc[shared]
    errors: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    hits: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
    for name in (name for name in after.columns if name in truth.columns):
        true = truth.loc[shared, name]
        filled = (before[name].isna() & after[name].notna() & true.notna()).to_numpy()
        left, right = after[name][filled], true[filled]
        if types.is_numeric_dtype(true.dtype) and not types.is_bool_dtype(true.dtype):
            spread = float(truth[name].std(ddof=0)) or 1.0
            errors.append((left.to_numpy(dtype=float) - right.to_numpy(dtype=float)) / spread)
        else:
            hits.append(left.astype(str).to_numpy() == right.astype(str).to_numpy())
    found: dict[str, float] = {}
    if errors and (flat := np.concatenate(errors)).size:
        found["rmse-in-sd"] = float(np.sqrt(np.mean(flat**2)))
    if hits and (right_ones := np.concatenate(hits)).size:
        found["share-right"] = float(right_ones.mean())
    return found
