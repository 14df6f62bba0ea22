"""Hide some known cells of a table, so that imputed values can be compared with them."""

import hashlib

import numpy as np
import pandas as pd
from pandas.api import types

from flwr_vertical.errors import ConfigError
from flwr_vertical.tables.codes import as_labels, put_in
from flwr_vertical.tables.table import Table


def imputation_accuracy(
    incomplete: pd.DataFrame,
    imputed: pd.DataFrame,
    truth: pd.DataFrame,
    intervals: pd.DataFrame | None = None,
) -> dict[str, float]:
    """Compare the cells that were filled in with their true values.

    Parameters
    ----------
    incomplete : pandas.DataFrame of shape (n_samples, n_columns)
        The table before; a sample without a row counts as missing altogether. Numbers that are
        names of levels are categories (`Table.by_kind`).
    imputed : pandas.DataFrame of shape (n_rows, n_columns)
        The table afterwards.
    truth : pandas.DataFrame
        The complete table, indexed by sample ID; what it does not hold is not compared.
    intervals : pandas.DataFrame, optional
        Of completed numbers, as in `Result.intervals`.

    Returns
    -------
    dict[str, float]
        ``rmse_in_sd``: root mean squared error of numeric cells, each in standard deviations of
        its column's true values, so that filling in the mean gives about 1. ``share_right``:
        share of all other cells that were hit. ``coverage``: share of intervals that hold the true
        value. Each is absent if there is no such cell.
    """
    shared = imputed.index.intersection(truth.index)
    before, after = incomplete.reindex(shared), imputed.loc[shared]
    errors: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    hits: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
    for name in (name for name in after.columns if name in truth.columns):
        true = truth.loc[shared, name]
        filled = (before[name].isna() & after[name].notna() & true.notna()).to_numpy()
        left, right = after[name][filled], true[filled]
        dtypes = true.dtype, before[name].dtype
        if all(types.is_numeric_dtype(d) and not types.is_bool_dtype(d) for d in dtypes):
            spread = float(truth[name].std(ddof=0)) or 1.0
            errors.append((left.to_numpy(dtype=float) - right.to_numpy(dtype=float)) / spread)
        else:
            hits.append(as_labels(left).to_numpy() == as_labels(right).to_numpy())
    found: dict[str, float] = {}
    if errors and (flat := np.concatenate(errors)).size:
        found["rmse_in_sd"] = float(np.sqrt(np.mean(flat**2)))
    if hits and (right_ones := np.concatenate(hits)).size:
        found["share_right"] = float(right_ones.mean())
    inside: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
    for name in truth.columns:
        if intervals is not None and f"{name} lower" in intervals:
            ends = intervals[[f"{name} lower", f"{name} upper"]].dropna()
            true = truth[name].reindex(ends.index)
            inside.append(true.between(ends.iloc[:, 0], ends.iloc[:, 1])[true.notna()].to_numpy())
    if inside and (flat_ones := np.concatenate(inside)).size:
        found["coverage"] = float(flat_ones.mean())
    return found


_FEWEST = 10  # known cells that a column keeps


def hide_cells(table: Table, share: float, seed: str, party: str = "") -> Table:
    """Return a table in which a share of the known cells of each column is missing.

    A column keeps at least ten known cells and one of each of its levels, and a row at least one
    known cell; so fewer may be hidden than asked for. The same `seed` hides the same cells of a
    party, and `party` other cells than at others. Columns of whole numbers may become floating
    ones. `ConfigError` if the share is not in (0, 0.5].
    """
    if not 0.0 < share <= 0.5:
        raise ConfigError(f"the share of cells to hold out must be in (0, 0.5], got {share:g}")
    digest = hashlib.blake2b(f"hold out\\0{seed}\\0{party}".encode(), digest_size=16).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    frame = table.frame
    known = frame.notna().to_numpy()
    hidden = np.zeros(known.shape, dtype=bool)
    for j, name in enumerate(frame.columns):
        # One row of each level stays, so that the column keeps its levels and its kind.
        first = ~frame[name].duplicated().to_numpy() if frame[name].nunique() <= 50 else False
        free = np.flatnonzero(known[:, j] & ~np.asarray(first))
        count = min(round(share * int(known[:, j].sum())), int(known[:, j].sum()) - _FEWEST)
        if count > 0 and len(free):
            hidden[rng.choice(free, min(count, len(free)), replace=False), j] = True
    bare = np.flatnonzero(hidden.any(axis=1) & ~(known & ~hidden).any(axis=1))
    hidden[bare, hidden[bare].argmax(axis=1)] = False
    shown = {}
    for j, name in enumerate(frame.columns):
        column = table.exact.get(name, frame[name])
        if types.is_integer_dtype(column.dtype):  # as objects the large ones stay exact
            column = column.astype(object)
        shown[name] = column.mask(hidden[:, j]) if hidden[:, j].any() else column
    return Table.of(pd.DataFrame(shown, frame.index), kinds=table.kinds)


def put_back(after: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return what a run made of a table with hidden cells, with the given values in these."""
    frame, given = after.copy(), table.frame
    rows = after.index.intersection(given.index)
    if not len(rows):  # a synthetic table
        return frame
    for name in (name for name in given if name in frame):
        whole = table.exact.get(str(name), given[name])
        if whole.dtype.kind in "iu" and whole.abs().max() > 2**53:
            frame[name] = put_in(frame[name], whole.loc[rows].dropna())
            continue
        known, dtype = given.loc[rows][name].dropna(), given[name].dtype
        column = frame[name].astype(object)
        column.loc[known.index] = known.astype(object)
        for kind in (frame[name].dtype, dtype):
            try:
                restored = column.astype(kind)
            except (TypeError, ValueError):
                continue
            # Whole numbers were floating ones while some of them were hidden.
            if (restored.loc[known.index] == known).all() and (
                kind != dtype or (restored.astype(object) == column).all()
            ):
                frame[name] = restored
        if not (frame[name].loc[known.index] == known).all():
            frame[name] = column
    return frame
