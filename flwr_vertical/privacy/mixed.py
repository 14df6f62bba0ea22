"""Nearest rows of tables with numbers and levels."""

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float64]

_CELLS = 4_000_000  # distances held at a time


def nearest_rows(
    people: pd.DataFrame, rows: pd.DataFrame, n_neighbors: int = 1
) -> npt.NDArray[np.int64]:
    """Return the rows that are nearest to each person.

    The distance is Gower's (1971): the sum over columns of absolute differences of numbers as a
    share of their range in both tables, and of 1 for each level that differs.

    Parameters
    ----------
    people : pandas.DataFrame of shape (n_people, n_columns)
        Complete.
    rows : pandas.DataFrame of shape (n_rows, n_columns)
        Complete, with the same columns.
    n_neighbors : int, default 1
        How many.

    Returns
    -------
    numpy.ndarray of shape (n_people, n_neighbors), int64
        Places of rows, the nearest first; of equals the first.
    """
    columns = [_codes(people[name], rows[name]) for name in people]
    found = np.empty((len(people), n_neighbors), dtype=np.int64)
    block = max(1, _CELLS // max(1, len(rows)))
    for start in range(0, len(people), block):
        stop = min(start + block, len(people))
        distance = np.zeros((stop - start, len(rows)))
        for own, other, numeric in columns:
            if numeric:
                distance += np.abs(own[start:stop, None] - other[None])
            else:
                distance += own[start:stop, None] != other[None]
        if n_neighbors == 1:
            found[start:stop, 0] = distance.argmin(axis=1)
        else:
            found[start:stop] = distance.argsort(axis=1, kind="stable")[:, :n_neighbors]
    return found


def is_number(column: "pd.Series") -> bool:
    """Whether a column's values are numbers; booleans are levels."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _codes(people: "pd.Series", rows: "pd.Series") -> tuple[Array, Array, bool]:
    """Return a column of both tables as numbers in units of their range, or as codes of levels."""
    both = pd.concat([people, rows], ignore_index=True)
    if is_number(people) and is_number(rows):
        values = both.to_numpy(dtype=np.float64)
        values = values / (np.ptp(values) or 1.0)
    else:
        values = pd.factorize(both)[0].astype(np.float64)
    return values[: len(people)], values[len(people) :], is_number(people) and is_number(rows)
