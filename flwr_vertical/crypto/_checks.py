"""Checks on values before they are encoded, and the messages that say what to do.

The fast path of an encoder only compares the extremes of a chunk with the limit; these helpers
take a second, slower look once something is known to be wrong.
"""

import math
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import ConfigError, DataError, FixedPointOverflowError


def label(name: str, party: str | None) -> str:
    """Return how error messages call an array: its name and, if known, its party."""
    return f"array {name!r}" + (f" of party {party!r}" if party is not None else "")


def check_n_parties(n_parties: int) -> None:
    """Raise `ConfigError` unless the sum runs over at least one party."""
    if n_parties < 1:
        raise ConfigError(f"a private sum needs at least 1 party, got n_parties={n_parties}")


def real_array(values: ArrayLike, name: str, party: str | None) -> AnyArray:
    """Return `values` as a C-contiguous array of real numbers, copied only if it has to be."""
    # Not ascontiguousarray, which would turn a scalar into a vector.
    array = np.asarray(values, order="C")
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{label(name, party)} must hold real numbers, got dtype {array.dtype}; "
            "convert it to float64 first"
        )
    return array


def within(values: AnyArray, limit: float) -> bool:
    """Return whether a non-empty array is finite and at most `limit` in absolute value."""
    # max and min hand on NaN, and every comparison with NaN is false. They become Python floats
    # because NumPy would round the limit to the type of a narrower array.
    return float(values.max()) <= limit and float(values.min()) >= -limit


def raise_out_of_range(
    values: AnyArray, limit: float, name: str, party: str | None, remedy: str
) -> NoReturn:
    """Say why `values` cannot be encoded.

    The message leaves the node, and who asks chooses the limit: it has no value and no count of
    them, and the largest only to a power of two, which the remedy needs.
    """
    where = label(name, party)
    magnitude = np.abs(values.astype(np.float64, copy=False))
    if not np.isfinite(magnitude).all():
        raise DataError(
            f"{where} must be finite to enter a private sum, but some of its values are NaN or "
            "infinite; impute missing cells first, and look for a diverging fit"
        )
    up_to = power_above(float(np.max(magnitude)))
    raise FixedPointOverflowError(
        f"{where} has values too large for the private sum: up to {up_to:.6g} in absolute value "
        f"(a power of two), and the limit per party is {limit:.6g}; {remedy}"
    )


def power_above(value: float) -> float:
    """Return the power of two that is not below a positive number: all that errors tell of it."""
    return 2.0 ** math.ceil(math.log2(value)) if value <= 2.0**1023 else math.inf


def largest_magnitude(values: AnyArray) -> float:
    """Return the largest finite absolute value, 0 if there is none."""
    magnitude = np.abs(values.astype(np.float64, copy=False))
    return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))
