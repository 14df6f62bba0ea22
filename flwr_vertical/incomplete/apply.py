"""From masks to incomplete tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from flwr_vertical.errors import DataError
from flwr_vertical.incomplete._inputs import Mask, Seed, checked_mask, generator, shared_index


def at_least_one_party(mask: npt.ArrayLike, *, seed: Seed = 0) -> Mask:
    """Give every sample that no party holds the block of one party, drawn uniformly.

    Hong, Park and Hwang (FALSE-VFL), Section 3.1, assume that no sample is missing everywhere; a
    private alignment of the parties' IDs could not see it either. They do not say how their
    generators ensure it. VFEM and the copula method know the samples from the labels and do not
    need it.

    Parameters
    ----------
    mask : array_like of bool, shape (n_samples, n_parties)
        True where the block is missing.
    seed : int or numpy.random.Generator, default 0

    Returns
    -------
    ndarray of bool, shape (n_samples, n_parties)
        A copy in which no row is all True.

    Raises
    ------
    DataError
        If the mask is not boolean with two axes and at least one party.
    """
    array = np.array(mask)
    if array.ndim != 2 or array.shape[1] == 0:
        raise DataError(f"mask must have shape (n_samples, n_parties), got {array.shape}")
    array = checked_mask(array, array.shape)
    empty = np.flatnonzero(array.all(axis=1))
    rng = generator(seed, "at_least_one_party")
    array[empty, rng.integers(array.shape[1], size=empty.size)] = False
    return array


def drop_blocks(tables: Mapping[str, pd.DataFrame], mask: npt.ArrayLike) -> dict[str, pd.DataFrame]:
    """Remove the rows of missing blocks from the complete tables.

    Parameters
    ----------
    tables : mapping of party to pandas.DataFrame, shapes (n_samples, p_k)
        With the same index.
    mask : array_like of bool, shape (n_samples, n_parties)
        True where the block is missing; columns in the order of `tables`.

    Returns
    -------
    dict of str to pandas.DataFrame
        The same columns, only the rows that the party keeps, in order.

    Raises
    ------
    DataError
        If the indices or the mask's shape do not fit, or a party would keep no row.
    """
    n_samples = len(shared_index(tables))
    array = checked_mask(mask, (n_samples, len(tables)))
    if emptied := [party for party, lost in zip(tables, array.T, strict=True) if lost.all()]:
        raise DataError(
            f"the mask leaves no row to {', '.join(map(repr, emptied))}; lower the missing rate, "
            "take more samples or leave the party out"
        )
    return {
        party: frame.loc[~lost]
        for (party, frame), lost in zip(tables.items(), array.T, strict=True)
    }


def blank_cells(frame: pd.DataFrame, mask: npt.ArrayLike) -> pd.DataFrame:
    """Make cells missing.

    Parameters
    ----------
    frame : pandas.DataFrame, shape (n_samples, n_columns)
    mask : array_like of bool, shape (n_samples, n_columns)
        True where the cell shall be missing; cells that are already missing stay so.

    Returns
    -------
    pandas.DataFrame, shape (n_samples, n_columns)
        A copy. Columns that lose a cell change their dtype where it has no missing value:
        integers to float64, booleans to nullable `boolean`. Strings and Categoricals stay.

    Raises
    ------
    DataError
        If the mask is not boolean or has another shape.
    """
    array = checked_mask(mask, frame.shape)
    result = frame.copy()
    for j in np.flatnonzero(array.any(axis=0)).tolist():
        column: pd.Series[Any] = frame.iloc[:, j]
        if isinstance(column.dtype, np.dtype):
            if types.is_bool_dtype(column.dtype):
                column = column.astype("boolean")
            elif types.is_integer_dtype(column.dtype):
                column = column.astype("float64")
        result.isetitem(j, column.mask(array[:, j]))  # type: ignore[arg-type]
    return result
