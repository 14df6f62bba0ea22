"""Real numbers and counts as elements of a ring Z/2^w, where sums are exact and masks are uniform.

A real number x travels as ``round(x * 2**fraction_bits) mod 2**64`` in two's complement, so that
adding the encodings of all parties modulo 2^64 gives the encoding of the sum. The only error is
the rounding of each term, at most half a `resolution` per party. Counts need no fraction and keep
a ring as narrow as their data type, which is what makes them cheap to send.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_vertical.crypto import _checks
from flwr_vertical.errors import ConfigError, DataError, ProtocolError

_CHUNK = 1 << 15
"""Values per pass: 256 KiB of float64, so that the passes over a chunk stay in the L2 cache."""

_MAX_FRACTION_BITS = 62


def _largest_float(bound: int) -> float:
    """Return the largest float64 that is not above the integer `bound`."""
    value = float(bound)
    return value if int(value) <= bound else math.nextafter(value, 0.0)


def _limit(n_parties: int, fraction_bits: int) -> float:
    """Return the largest |value| of one party whose sum over `n_parties` stays below 2^63 units."""
    # Dividing by a power of two is exact.
    return _largest_float((2**63 - 1) // n_parties) / 2.0**fraction_bits


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point encoding of real numbers in the ring Z/2^64.

    Parameters
    ----------
    fraction_bits : int, default 32
        Binary digits after the point, 0 to 62. More digits: finer sums, smaller range.

    Raises
    ------
    ConfigError
        If `fraction_bits` is outside 0 to 62.
    """

    fraction_bits: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.fraction_bits <= _MAX_FRACTION_BITS:
            raise ConfigError(
                f"fraction_bits must be 0 to {_MAX_FRACTION_BITS}, got {self.fraction_bits}"
            )

    @property
    def resolution(self) -> float:
        """Step between neighbouring encodings, ``2**-fraction_bits``, in units of the values."""
        return 2.0**-self.fraction_bits

    def limit(self, n_parties: int) -> float:
        """Return the largest absolute value one party may send.

        Parameters
        ----------
        n_parties : int
            Number of terms in the sum, at least 1.

        Returns
        -------
        float
            In units of the values. With every party at this limit the sum still does not wrap.

        Raises
        ------
        ConfigError
            If `n_parties` is below 1.
        """
        _checks.check_n_parties(n_parties)
        return _limit(n_parties, self.fraction_bits)

    def encode(
        self, values: ArrayLike, n_parties: int, name: str = "values", party: str | None = None
    ) -> NDArray[np.uint64]:
        """Encode real numbers for a sum over `n_parties` parties.

        Parameters
        ----------
        values : array_like of real numbers, any shape
            Left untouched.
        n_parties : int
            Number of terms in the sum, at least 1.
        name, party : str, optional
            What errors call the array and its owner.

        Returns
        -------
        ndarray of uint64, shape of `values`
            Freshly allocated, C-contiguous: it may be masked in place.

        Raises
        ------
        DataError
            If a value is NaN or infinite, or the values are not real numbers.
        FixedPointOverflowError
            If a value is above ``limit(n_parties)``.
        ConfigError
            If `n_parties` is below 1.
        """
        limit = self.limit(n_parties)
        array = _checks.real_array(values, name, party)
        ring = np.empty(array.shape, dtype=np.uint64)
        flat, signed = array.reshape(-1), ring.reshape(-1).view(np.int64)
        buffer = np.empty(min(_CHUNK, flat.size), dtype=np.float64)
        scale = 2.0**self.fraction_bits
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            if not _checks.within(chunk, limit):
                _checks.raise_out_of_range(flat, limit, name, party, self._remedy(flat, n_parties))
            scaled = buffer[: chunk.size]
            np.multiply(chunk, scale, out=scaled, dtype=np.float64)
            np.rint(scaled, out=scaled)
            np.copyto(signed[start : start + _CHUNK], scaled, casting="unsafe")
        return ring

    def decode(self, ring: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Turn ring elements, usually a sum over parties, back into real numbers.

        Parameters
        ----------
        ring : ndarray of uint64, any shape
            Two's complement fixed point.

        Returns
        -------
        ndarray of float64, shape of `ring`
            Sums beyond 2^53 units of resolution are rounded to the nearest float64.

        Raises
        ------
        ProtocolError
            If `ring` is not an array of uint64.
        """
        if ring.dtype != np.uint64:
            raise ProtocolError(f"fixed-point sums are arrays of uint64, got {ring.dtype}")
        array = np.asarray(ring, order="C")
        values = np.empty(array.shape, dtype=np.float64)
        flat, signed = values.reshape(-1), array.reshape(-1).view(np.int64)
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            np.copyto(chunk, signed[start : start + _CHUNK])
            np.multiply(chunk, self.resolution, out=chunk)
        return values

    def _remedy(self, values: NDArray[Any], n_parties: int) -> str:
        """Return what to do about values beyond the limit."""
        largest = _checks.largest_magnitude(values)
        for bits in range(self.fraction_bits - 1, -1, -1):
            if largest <= _limit(n_parties, bits):
                return (
                    f"standardise the columns, or lower fraction_bits from {self.fraction_bits} to "
                    f"{bits} (resolution {2.0**-bits:.3g}) at every party"
                )
        return "standardise the columns: no number of fraction bits carries values this large"


_RINGS: dict[str, type[np.unsignedinteger[Any]]] = {
    "bool": np.uint16,
    "uint8": np.uint16,
    "uint16": np.uint16,
    "uint32": np.uint32,
}
"""Ring of the narrow unsigned types; every other integer type rides in Z/2^64, signed."""


def encode_integers(
    values: ArrayLike, n_parties: int, name: str = "values", party: str | None = None
) -> NDArray[np.unsignedinteger[Any]]:
    """Encode integers for an exact sum over `n_parties` parties.

    The data type declares the ring, so that all parties agree on it without looking at their
    values: bool, uint8 and uint16 ride in Z/2^16, uint32 in Z/2^32 (both unsigned), every other
    integer type in Z/2^64 (signed, two's complement).

    Parameters
    ----------
    values : array_like of integers or bools, any shape
        Left untouched.
    n_parties : int
        Number of terms in the sum, at least 1.
    name, party : str, optional
        What errors call the array and its owner.

    Returns
    -------
    ndarray of uint16, uint32 or uint64, shape of `values`
        Freshly allocated, C-contiguous: it may be masked in place.

    Raises
    ------
    DataError
        If the values are not integers.
    FixedPointOverflowError
        If a value times `n_parties` would leave the ring.
    ConfigError
        If `n_parties` is below 1.
    """
    _checks.check_n_parties(n_parties)
    array = np.asarray(values, order="C")
    if array.dtype.kind not in "iub":
        raise DataError(
            f"{_checks.label(name, party)} must hold integers to be summed exactly, got dtype "
            f"{array.dtype}; round it to integers, or send it as float64"
        )
    ring = _RINGS.get(array.dtype.name, np.uint64)
    bits = np.dtype(ring).itemsize * 8
    limit = (2**63 - 1 if bits == 64 else 2**bits - 1) // n_parties
    if array.size and (int(array.max()) > limit or int(array.min()) < -limit):
        wider = {16: "uint32", 32: "int64"}.get(bits)
        remedy = (
            f"send it as {wider}, at every party" if wider else "send it as float64, or rescale it"
        )
        _checks.raise_out_of_range(array, limit, name, party, remedy)
    # Signed to unsigned of the same width or wider is reduction modulo 2^w.
    return array.astype(ring, order="C")


def decode_integers(
    ring: NDArray[np.unsignedinteger[Any]], signed: bool | None = None
) -> NDArray[np.integer[Any]]:
    """Turn an exact sum back into integers.

    Parameters
    ----------
    ring : ndarray of uint16, uint32 or uint64, any shape
        Sum over parties of what `encode_integers` returned.
    signed : bool, optional
        Whether the terms were signed. By default the width tells: `encode_integers` keeps 64-bit
        sums within int64, and never makes narrower ones signed.

    Returns
    -------
    ndarray of uint16, uint32 or int64, shape of `ring`
        A view of `ring`, of the signed type of its width if `signed`.

    Raises
    ------
    ProtocolError
        If `ring` has another data type.
    """
    if ring.dtype not in (np.uint16, np.uint32, np.uint64):
        raise ProtocolError(
            f"exact sums are arrays of uint16, uint32 or uint64, got {ring.dtype}; "
            "encode the terms with encode_integers"
        )
    if signed is None:
        signed = ring.dtype == np.uint64
    return ring.view(f"i{ring.itemsize}") if signed else ring
