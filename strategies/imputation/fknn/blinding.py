"""What hides rows to be imputed, donors and distances from the server that ranks them.

The parties share a seed that the server does not have. From it follow a secret order of all rows,
in which the server names them, and for each row ``i`` to be imputed a stream of its own:

- an order of the donors,
- a factor ``c_i``, log-uniform from 2^-4 to 2^4, and a shift ``a_i``, uniform from 0 to a few times
  the mean distance,
- a factor ``t_ij`` for each donor, log-uniform from 1 to 2^8.

Of its distances ``D_k`` and weights ``W_k`` party k sends ``t_ij c_i (D_k + a_i W_k)`` and ``t_ij
W_k``, rounded after multiplication. Summed over parties and divided, this is ``c_i (D/W + a_i)``:
in order, and all else that the server sees of a pair. Scale and order alone would not do: rows that
are donors of each other then tell their scales, and the matrix of distances can be put together
again. Weights that are seen tell which rows share which cells missing.

A row's stream is the same whenever the row comes again, so a second answer tells nothing new.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.products.streams import stream

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SCALE_BITS, FACTOR_BITS = 4, 8
"""Row factors reach from 2^-4 to 2^4, factors of pairs from 1 to 2^8."""

DITHER_BITS = 11
"""Low bits of a party's largest terms that a float64 cannot hold: filled at random."""

LOW_BITS = 31
"""Bits of the low half of a distance where ciphertexts carry it in two halves."""

HALF, WEIGHT_BITS = 2.0**LOW_BITS, 50
"""The halves are below this; weights have at most so many bits, which factors of 53 bits reach."""


@dataclass(frozen=True)
class Units:
    """The units in which distances and weights travel, as powers of two that all parties know.

    Parameters
    ----------
    distance : int
        Exponent of what multiplies distances.
    shift : int or None
        Exponent of the largest shift; None for none, where distances shall keep their ratios.
    weight : int
        Exponent of what multiplies weights.
    """

    distance: int
    shift: int | None
    weight: int


@dataclass(frozen=True)
class RowBlinding:
    """What one row to be imputed is hidden by.

    Parameters
    ----------
    order : numpy.ndarray of shape (n_donors,)
        Which donor stands at which place.
    factors : numpy.ndarray of shape (n_donors,)
        Of the pairs, by place.
    scale : float
        Of the row.
    shift : float
        Of the row's distances, from 0 to 1 in units of the largest shift.
    dither : numpy.ndarray of shape (n_donors,), uint64
        Numbers below 2^11, by place.
    """

    order: npt.NDArray[np.intp]
    factors: Array
    scale: float
    shift: float
    dither: npt.NDArray[np.uint64]


def secret_order(seed: bytes, n_samples: int) -> Integers:
    """Return the order in which the server names rows: the aligned row at each place.

    Parameters
    ----------
    seed : bytes of length 32
        Of the group of parties.
    n_samples : int
        Number of aligned rows.
    """
    keys = stream(seed, "fknn order of rows", (n_samples,))
    return np.argsort(keys, kind="stable").astype(np.int64)


def row_blinding(seed: bytes, place: int, n_donors: int) -> RowBlinding:
    """Draw what hides the row at a place, and its donors.

    Parameters
    ----------
    seed : bytes of length 32
        Of the group of parties.
    place : int
        Of the row in the secret order.
    n_donors : int
        Number of donors.
    """
    numbers = stream(seed, f"fknn row {place}", (2 + n_donors + (n_donors + 1) // 2,))
    scale, shift = _uniform(numbers[:2])
    bits = numbers[2 : 2 + n_donors]
    return RowBlinding(
        _order(numbers[2 + n_donors :].astype("<u8", copy=False).view("<u4")[:n_donors]),
        np.exp2(FACTOR_BITS * _uniform(bits)),
        float(2.0 ** (SCALE_BITS * (2 * scale - 1))),
        float(shift),
        bits & np.uint64(2**DITHER_BITS - 1),
    )


def blind(
    distance: Array, weight: npt.NDArray[np.uint16], row: RowBlinding, units: Units, dithers: bool
) -> tuple[Integers, Integers]:
    """Blind one party's terms of one row.

    Parameters
    ----------
    distance, weight : numpy.ndarray of shape (n_donors,)
        In the parties' own order of donors.
    row : RowBlinding
        Of this row.
    units : Units
        Of the run.
    dithers : bool
        Whether this party fills the low bits: one of them does. Without, the zeros that floating
        point leaves behind a large number would tell how large the parties' terms were.

    Returns
    -------
    distance, weight : numpy.ndarray of shape (n_donors,), int64
        In the row's secret order.
    """
    unit = row.scale * 2.0**units.distance
    if units.shift is not None:
        distance = distance + (row.shift * 2.0**units.shift) * weight
    blinded = distance.take(row.order)
    blinded *= row.factors
    blinded *= unit
    terms = np.rint(blinded, out=blinded).astype(np.int64)
    if dithers and units.shift is not None:
        # Where factor and scale are largest, terms have up to 62 bits, of which 53 are held.
        amplitude = row.scale * 2.0 ** (62 - 53 - DITHER_BITS - SCALE_BITS - FACTOR_BITS)
        low = row.dither.astype(np.float64)
        low *= row.factors
        low *= amplitude
        terms += low.astype(np.int64)
    weights = weight.take(row.order) * row.factors
    weights *= 2.0**units.weight
    return terms, np.rint(weights, out=weights).astype(np.int64)


def halves(terms: Integers) -> tuple[Array, Array]:
    """Split whole numbers into two halves that ciphertexts carry without loss.

    Returns
    -------
    high, low : numpy.ndarray of the same shape
        Such that ``terms = high * 2^31 + low``, ``low`` from 0.
    """
    return (terms >> LOW_BITS).astype(np.float64), (terms & (2**LOW_BITS - 1)).astype(np.float64)


def _uniform(bits: npt.NDArray[np.uint64]) -> Array:
    return (bits >> np.uint64(DITHER_BITS)).astype(np.float64) * 2.0**-53


def _order(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """Sort by 32 bits in two stable passes over 16 each, several times as fast as one over 32."""
    halves = keys.view("<u2").reshape(-1, 2)
    first = np.argsort(halves[:, 0], kind="stable")
    return first[np.argsort(halves[first, 1], kind="stable")]
