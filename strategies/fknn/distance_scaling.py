"""Units in which blinded distances fit the private sum, from what no party has to tell alone.

Each party adds a 1 to one of many counters, for the power of two of its largest distance, of its
mean distance and of its number of columns. The sum tells the largest of each, not whose it is.
"""

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import DataError
from strategies.fknn.blinding import FACTOR_BITS, SCALE_BITS, WEIGHT_BITS, Units
from strategies.fknn.distances import Features

# Distances are told as powers of two between 2^-1000 and 2^1047, more than floats can have.
N_EXPONENTS = 2048
_LOWEST = -1000
_SHIFT_BITS = 2
"""Shifts reach to 2^2 times the mean distance of the party where it is largest."""


def magnitude(
    features: Features, weighting: str, names: list[str] | None = None, party: str = ""
) -> npt.NDArray[np.uint8]:
    """Tell orders of magnitude of a party's distances and weights, as three 1s among zeros.

    Shapes: returns (3, N_EXPONENTS): A 1 at ``1000 + e`` where ``2^e`` is the least power of two
    not below the largest distance, its mean over pairs a unit of weight, and the largest weight;
    at 0 for none above 0.
    """
    spread, variance = np.zeros(features.n_features), np.zeros(features.n_features)
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(features.n_features):
            column = features.known_values(j)
            if column.size:
                spread[j], variance[j] = np.ptp(column), column.var()
        # Two levels of one column differ in two features, by 1 together.
        of = np.array(features.column_of)
        several = np.bincount(of) > 1
        squares = np.where(several, 1.0, np.bincount(of, spread**2))
        largest = squares.sum() if weighting == "exact" else squares.max(initial=0.0)
    if not np.isfinite(largest):
        wide = np.flatnonzero(~(squares < squares.max(initial=0.0)))
        label = ", ".join(repr(names[j]) if names else f"number {j}" for j in wide)
        raise DataError(
            f"party {party!r}, column {label}: values reach so far (about 1e154) that squared "
            "differences overflow; rescale them"
        )
    mean = 2.0 * variance.sum() / max(features.n_columns, 1)
    weight = features.n_columns if weighting == "exact" else 1
    flags = np.zeros((3, N_EXPONENTS), dtype=np.uint8)
    for flag, value in zip(flags, (largest, mean, weight), strict=True):
        flag[exponent(value) - _LOWEST] = 1
    return flags


def exponent(value: float) -> int:
    """Return the exponent of the least power of two not below a number, at least -1000."""
    return max(int(np.ceil(np.log2(value))), _LOWEST) if value > 0 else _LOWEST


def common_units(magnitudes: npt.NDArray[np.integer], n_parties: int, shifted: bool) -> Units:
    """Return the finest units in which no sum of blinded terms overflows 63 bits.

    Shapes: magnitudes (3, N_EXPONENTS): `magnitude`, summed over parties.
    """
    largest, mean, weight = (int(np.flatnonzero(row).max()) + _LOWEST for row in magnitudes)
    shift = mean + _SHIFT_BITS if shifted else None
    bound = largest if shift is None else max(largest, shift + weight) + 1
    # One of 63 bits is left, since low bits may lift a term a little.
    most = 62 - exponent(n_parties)
    distance = min(most - SCALE_BITS - FACTOR_BITS - bound, 1000)
    return Units(distance, shift, WEIGHT_BITS - FACTOR_BITS - weight)


def check_units(
    units: Units, magnitudes: npt.NDArray[np.integer], shifted: bool, party: str
) -> None:
    """Refuse units that would hide less than this party's own distances need.

    Shapes: magnitudes (3, N_EXPONENTS): what this party told.
    """
    _, mean, weight = (int(np.flatnonzero(row).max()) + _LOWEST for row in magnitudes)
    if shifted and (units.shift is None or units.shift < mean + _SHIFT_BITS):
        raise DataError(
            f"party {party!r}: distances were to be shifted by up to 2^{units.shift}, and its own "
            f"need 2^{mean + _SHIFT_BITS} at least; the server does not keep to the method"
        )
    if units.weight > WEIGHT_BITS - FACTOR_BITS - weight:
        raise DataError(
            f"party {party!r}: weights were to be sent in units of 2^-{units.weight}, and at most "
            f"2^-{WEIGHT_BITS - FACTOR_BITS - weight} hides them; the server does not keep to the "
            "method"
        )
