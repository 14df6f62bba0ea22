"""Units in which a party offers its columns: near to standardised, and telling hardly anything."""

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array

_STEPS = 4  # a centre is a multiple of the unit over this


def rough_units(raw: Array, few: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Choose centre and unit of each column.

    Shapes: raw (n_rows, n_columns): in the table's units; at least one row; few (n_columns,):
    columns of few different values; returns (n_columns,): the unit is a power of two not below the
    standard deviation; the centre the nearest multiple of a quarter of it to the mean.
    """
    middle, spread = raw.mean(axis=0), raw.std(axis=0)
    low, high = raw.min(axis=0), raw.max(axis=0)
    middle = np.where(few, (low + high) / 2.0, middle)
    spread = np.where(few, (high - low) / 2.0, spread)
    largest = np.maximum(np.abs(low), np.abs(high))
    # Rounding leaves a constant column with a tiny spread: its one value is the centre.
    constant = spread <= 1e-12 * largest
    unit = 2.0 ** np.ceil(np.log2(np.where(constant, 1.0, spread)))
    center = np.round(middle / unit * _STEPS) / _STEPS * unit
    return np.where(constant, low, center), np.where(constant, 1.0, unit)
