"""Hide some known cells of a table, so that imputed values can be compared with them."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.tables.table import Table

_FEWEST = 10  # known cells that a column keeps


def hide_cells(table: Table, share: float, seed: str, party: str = "") -> Table:
    """Return a table in which a share of the known cells of each column is missing.

    A column keeps at least ten known cells and one of each of its levels, and a row at least one
    known cell; so fewer may be hidden than asked for.

    Parameters
    ----------
    table : Table
        Of a party; it is not changed.
    share : float in (0, 0.5]
        How many of each column's known cells.
    seed : str
        The same one hides the same cells.
    party : str
        Whose table it is, so that parties hide different cells.

    Returns
    -------
    Table
        The same kinds; columns of whole numbers may have become floating ones.

    Raises
    ------
    ConfigError
        If the share is out of range.
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
    shown = {
        name: frame[name].mask(hidden[:, j]) if hidden[:, j].any() else frame[name]
        for j, name in enumerate(frame.columns)
    }
    return Table.of(pd.DataFrame(shown, frame.index), kinds=table.kinds)


def put_back(after: pd.DataFrame, given: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which cells that were hidden have their own values again.

    Parameters
    ----------
    after : pandas.DataFrame
        What a run made of the table with hidden cells.
    given : pandas.DataFrame
        The table before cells were hidden.
    """
    frame = after.copy()
    rows = after.index.intersection(given.index)
    if not len(rows):  # a synthetic table
        return frame
    for name in (name for name in given if name in frame):
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
