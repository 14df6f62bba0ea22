"""From a party's own rows to the aligned ones, and back for the rows of a batch."""

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Indices
from flwr_vertical.errors import ProtocolError


def to_aligned(values: Any, positions: Indices, n_samples: int, fill: Any) -> npt.NDArray[Any]:
    """Scatter values of own rows into the aligned order.

    Parameters
    ----------
    values : array_like of shape (n_own, ...)
        A value for each own row.
    positions : numpy.ndarray of shape (n_own,), int64
        Aligned row number of each own row, -1 if it is left out.
    n_samples : int
        Number of aligned rows.
    fill : scalar
        Stands where there is no own row.

    Returns
    -------
    numpy.ndarray of shape (n_samples, ...)
        Of the values' dtype, or the smallest that holds `fill`, too.

    Raises
    ------
    ProtocolError
        If there is not one value for each own row.
    """
    own = np.asarray(values)
    if own.ndim == 0 or len(own) != len(positions):
        raise ProtocolError(
            f"expected a value for each of {len(positions)} own rows, got shape {own.shape}"
        )
    # NumPy would read a text as the name of a dtype.
    other = np.asarray(fill) if isinstance(fill, str) else fill
    aligned = np.full((n_samples, *own.shape[1:]), fill, dtype=np.result_type(own.dtype, other))
    kept = positions >= 0
    aligned[positions[kept]] = own[kept]
    return aligned


def own_rows(positions: Indices, n_samples: int) -> Indices:
    """Return the own row of each aligned one.

    Returns
    -------
    numpy.ndarray of shape (n_samples,), int64
        -1 where there is no own row.
    """
    return to_aligned(np.arange(len(positions)), positions, n_samples, -1)


def rows_of(batch: Any, own: Indices) -> tuple[Indices, Indices]:
    """Find which rows of a batch are held.

    Parameters
    ----------
    batch : array_like of shape (n_batch,)
        Aligned row numbers, in any order; one may occur several times.
    own : numpy.ndarray of shape (n_samples,), int64
        As `own_rows` returns it.

    Returns
    -------
    places : numpy.ndarray of shape (n_held,), int64
        Where in the batch the rows held stand, ascending.
    rows : numpy.ndarray of shape (n_held,), int64
        Which own rows these are.

    Raises
    ------
    ProtocolError
        If the batch is no vector of aligned row numbers.
    """
    numbers = np.asarray(batch)
    if numbers.size == 0:
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise ProtocolError(
            "a batch is a vector of aligned row numbers, whole numbers; got an array of "
            f"shape {numbers.shape} and dtype {numbers.dtype}"
        )
    wrong = (numbers < 0) | (numbers >= len(own))
    if wrong.any():
        raise ProtocolError(
            f"a batch names the aligned row {numbers[wrong][0]}, but aligned rows go from 0 to "
            f"{len(own) - 1}"
        )
    found = own[numbers]
    places = np.flatnonzero(found >= 0)
    return places, found[places]
