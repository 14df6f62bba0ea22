"""Distances between rows of tables with numbers and levels."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array, Integers

_CELLS = 1_000_000  # distances held at a time
_STEPS = 2.0**30  # of a column's range


class Distances:
    """Distances of people to rows of a table, in blocks of people.

    The distance is Gower's (1971): the sum over columns of absolute differences of numbers as a
    share of their range in both tables, and of 1 for each level that differs. Shares are rounded to
    multiples of 2^-30, so that sums are exact and rows at the same distance are found to be so.

    Shapes: people (n_people, n_columns): complete; rows (n_rows, n_columns): complete, with the
    same columns.
    """

    def __init__(self, people: pd.DataFrame, rows: pd.DataFrame) -> None:
        self._columns = [_codes(people[name], rows[name]) for name in people]
        self.n_people, self.n_rows = len(people), len(rows)

    @property
    def blocks(self) -> Iterator[slice]:
        """Slices of people whose distances to all rows fit into some megabytes."""
        size = max(1, _CELLS // max(1, self.n_rows))
        for start in range(0, self.n_people, size):
            yield slice(start, min(start + size, self.n_people))

    def of_column(self, block: slice, column: int) -> Array:
        """Return a column's part of the distances; shape (n_people in the block, n_rows)."""
        own, other, numeric = self._columns[column]
        if numeric:
            return np.asarray(np.abs(own[block, None] - other[None]))
        return np.asarray((own[block, None] != other[None]).astype(np.float64))

    def of_all(self, block: slice) -> Array:
        """Return the distances over all columns; shape (n_people in the block, n_rows)."""
        total = np.zeros((block.stop - block.start, self.n_rows))
        for column in range(len(self._columns)):
            total += self.of_column(block, column)
        return total


def nearest(distances: Distances, n_neighbors: int = 1, own: Integers | None = None) -> Integers:
    """Return the rows that are nearest to each person.

    Shapes: own (n_people,): place of each person's own row, which is passed over; returns
    (n_people, n_neighbors): integers of rows, the nearest first; of equals the first.
    """
    found = np.empty((distances.n_people, n_neighbors), dtype=np.int64)
    for block in distances.blocks:
        found[block] = smallest(pass_over(distances.of_all(block), block, own), n_neighbors)
    return found


def pass_over(apart: Array, block: slice, own: Integers | None) -> Array:
    """Return distances in which nobody is near the own row; changes the array."""
    if own is not None:
        apart[np.arange(len(apart)), own[block]] = np.inf
    return apart


def smallest(apart: Array, count: int) -> Integers:
    """Return the places of the smallest distances of each row, of equals the first."""
    if count == 1:
        return np.asarray(apart.argmin(axis=1)[:, None])
    return np.asarray(apart.argsort(axis=1, kind="stable")[:, :count])


def is_number(column: pd.Series) -> bool:
    """Whether a column's values are numbers; booleans are levels."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _codes(people: pd.Series, rows: pd.Series) -> tuple[Array, Array, bool]:
    """Return a column of both tables as numbers in units of their range, or as codes of levels."""
    both = pd.concat([people, rows], ignore_index=True)
    numeric = is_number(people) and is_number(rows)
    if numeric:
        values = both.to_numpy(dtype=np.float64)
        values = (values - values.min()) / (np.ptp(values) or 1.0)
        values = np.round(values * _STEPS) / _STEPS
    else:
        values = pd.factorize(both)[0].astype(np.float64)
    return values[: len(people)], values[len(people) :], numeric
