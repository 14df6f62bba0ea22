"""From a party's own rows to the aligned ones, and back for the rows of a batch."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from flwr_vertical.arrays import AnyArray, Indices
from flwr_vertical.errors import ProtocolError


def aligned_name(row: int) -> str:
    """Return what a sample is called whose ID is not known, by its aligned row."""
    return f"aligned-{row}"


def free_names(names: Iterable[str], taken: "pd.Index[Any]") -> "pd.Index[Any]":
    """Put a ``+`` behind names that are IDs already, as those of an earlier run's table are."""
    found = pd.Index([*names], dtype=object)
    while (clash := found.isin(taken)).any():
        found = found.where(~clash, found + "+")
    return found


def to_aligned(values: Any, positions: Indices, n_samples: int, fill: Any) -> AnyArray:
    """Scatter values of own rows into the aligned order.

    Shapes: values (n_own, ...): A value for each own row; positions (n_own,): aligned row number
    of each own row, -1 if it is left out; returns (n_samples, ...): of the values' dtype, or the
    smallest that holds `fill`, too.
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
    """Return the own row of each aligned one, (n_samples,), -1 for none; if enough, in 32 bits."""
    dtype = np.int32 if len(positions) < 2**31 else np.int64
    return to_aligned(np.arange(len(positions), dtype=dtype), positions, n_samples, -1)


def rows_of(batch: Any, own: Indices) -> tuple[Indices, Indices]:
    """Find which rows of a batch are held.

    Shapes: batch (n_batch,): aligned row numbers, in any order; one may occur several times; own
    (n_samples,): as `own_rows` returns it; returns (n_held,): where in the batch the rows held
    stand, ascending; returns (n_held,): which own rows these are.
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
    return places, found[places].astype(np.int64)
