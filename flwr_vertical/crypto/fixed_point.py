"""Real numbers and counts as elements of a ring Z/2^w, where sums are exact and masks are uniform.

A real number x travels as ``round(x / scale * 2**fraction_bits) mod 2**w`` in two's complement, so
that adding the encodings of all parties modulo 2^w gives the encoding of the sum. The only error
is the rounding of each term, at most half a `resolution` per party. float64 values ride in Z/2^64;
float32 values in Z/2^32, whose 32 bits are divided between range and resolution by a scale that all
parties know. Counts need no fraction and keep a ring as narrow as their data type, which is what
makes them cheap to send.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_vertical.arrays import AnyArray
from flwr_vertical.crypto import _checks
from flwr_vertical.errors import ConfigError, DataError, ProtocolError

DEFAULT_SCALE = 2.0**8
"""Scale of float32 values if none is given: every party may send up to 256 at least."""

_CHUNK = 1 << 15
"""Values per pass: 256 KiB of float64, so that the passes over a chunk stay in the L2 cache."""

_MAX_FRACTION_BITS = 62
_MAX_SCALE_EXPONENT = 90  # float32 holds 2^(90 + 30) and its inverse

_Float = np.float32 | np.float64


def _largest_float(bound: int) -> float:
    """Return the largest float64 that is not above the integer `bound`."""
    value = float(bound)
    return value if int(value) <= bound else math.nextafter(value, 0.0)


def _units(n_parties: int, ring_bits: int) -> int:
    """Return how many units one party may send so that the sum stays below 2^(w - 1)."""
    return int((2 ** (ring_bits - 1) - 1) // n_parties)


def check_scale(scale: float) -> float:
    """Return the power of two at or above `scale`, which lies between 2^-90 and 2^90."""
    least = 2.0**-_MAX_SCALE_EXPONENT
    if (
        isinstance(scale, bool)
        or not isinstance(scale, int | float | np.integer | np.floating)
        or not least <= float(scale) <= 1.0 / least
    ):
        raise ConfigError(
            "the scale of a summand is the largest absolute value that a party shall be able to "
            f"send, a number from {least:.0e} to {1 / least:.0e}, got {scale!r}"
        )
    fraction, exponent = math.frexp(float(scale))
    return math.ldexp(1.0, exponent - (fraction == 0.5))


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point encoding of real numbers in the ring Z/2^64 or Z/2^32."""

    # Binary digits after the point, 0 to 62 (0 to 30 in Z/2^32); more: wider sums, smaller range
    fraction_bits: int = 32
    ring_bits: int = 64  # Width of the ring, or 32
    # Values are divided by it first; a power of two, so that this is exact. By default they are not
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.ring_bits not in (32, 64):
            raise ConfigError(f"ring_bits must be 32 or 64, got {self.ring_bits}")
        most = min(_MAX_FRACTION_BITS, self.ring_bits - 2)
        if not 0 <= self.fraction_bits <= most:
            raise ConfigError(f"fraction_bits must be 0 to {most}, got {self.fraction_bits}")
        if self.scale is not None and check_scale(self.scale) != self.scale:
            raise ConfigError(f"scale must be a power of two here, got {self.scale}")

    @classmethod
    def fitting(cls, scale: float, n_parties: int, ring_bits: int) -> "FixedPoint":
        """Return the finest encoding in which every party may send values up to `scale`.

        There are at most 2^30 parties. Its ``limit(n_parties)`` is less than four times the scale;
        its resolution is at most ``4 * n_parties * scale / 2**ring_bits``, of the power of two at
        or above the scale. `ConfigError` if one is out of range.
        """
        _checks.check_n_parties(n_parties)
        bits = _units(n_parties, ring_bits).bit_length() - 1
        return cls(bits, ring_bits, check_scale(scale))

    @property
    def resolution(self) -> float:
        """Step between neighbouring encodings, ``scale * 2**-fraction_bits``."""
        return (1.0 if self.scale is None else self.scale) * 2.0**-self.fraction_bits

    def limit(self, n_parties: int) -> float:
        """Return the largest absolute value of a party, by which the sum still does not wrap."""
        _checks.check_n_parties(n_parties)
        # Multiplying by a power of two is exact.
        return _largest_float(_units(n_parties, self.ring_bits)) * self.resolution

    def encode(
        self, values: ArrayLike, n_parties: int, name: str = "values", party: str | None = None
    ) -> NDArray[np.unsignedinteger[Any]]:
        """Encode real numbers for a sum over `n_parties` parties; they may be masked in place.

        `DataError` if one is no finite real number, `FixedPointOverflowError` if one is above
        ``limit(n_parties)``: errors call the array `name` and its owner `party`.
        """
        limit = self.limit(n_parties)
        array = _checks.real_array(values, name, party)
        ring = np.empty(array.shape, dtype=f"u{self.ring_bits // 8}")
        flat, signed = array.reshape(-1), ring.reshape(-1).view(f"i{self.ring_bits // 8}")
        # In float32 multiplying by a power of two and rounding are exact too, at half the cost.
        narrow = self.ring_bits == 32 and array.dtype in (np.float16, np.float32)
        work: type[_Float] = np.float32 if narrow else np.float64
        buffer = np.empty(min(_CHUNK, flat.size), dtype=work)
        factor = work(1.0 / self.resolution)
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            if not _checks.within(chunk, limit):
                _checks.raise_out_of_range(flat, limit, name, party, self._remedy(flat, n_parties))
            scaled = buffer[: chunk.size]
            np.multiply(chunk, factor, out=scaled, dtype=work)
            np.rint(scaled, out=scaled)
            np.copyto(signed[start : start + _CHUNK], scaled, casting="unsafe")
        return ring

    def decode(self, ring: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.floating[Any]]:
        """Turn ring elements, usually a sum over parties, back into float64 (float32 from Z/2^32).

        Sums beyond 2^53 (2^24) units of resolution are rounded to the nearest such number.
        `ProtocolError` if the data type is not that of the ring.
        """
        if ring.dtype != f"u{self.ring_bits // 8}":
            raise ProtocolError(
                f"fixed-point sums are arrays of uint{self.ring_bits}, got {ring.dtype}"
            )
        array = np.asarray(ring, order="C")
        signed = array.reshape(-1).view(f"i{self.ring_bits // 8}")
        work: type[_Float] = np.float32 if self.ring_bits == 32 else np.float64
        values: NDArray[np.floating[Any]] = np.empty(array.shape, dtype=work)
        flat, unit = values.reshape(-1), work(self.resolution)
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            np.copyto(chunk, signed[start : start + _CHUNK], casting="same_kind")
            np.multiply(chunk, unit, out=chunk)
        return values

    def _remedy(self, values: AnyArray, n_parties: int) -> str:
        """Return what to do about values beyond the limit."""
        largest = _checks.largest_magnitude(values)
        if self.scale is not None:
            if largest > 2.0**_MAX_SCALE_EXPONENT:
                return "standardise the columns: no scale carries values this large"
            wider = FixedPoint.fitting(largest, n_parties, self.ring_bits)
            remedy = (
                f"standardise the columns, or let the server ask for the sum with scale "
                f"{wider.scale:g} instead of {self.scale:g} (resolution {wider.resolution:.3g})"
            )
            return remedy + (", or send float64" if self.ring_bits == 32 else "")
        for bits in range(self.fraction_bits - 1, -1, -1):
            if largest <= FixedPoint(bits, self.ring_bits).limit(n_parties):
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
    """Encode integers for an exact sum over `n_parties` parties; the result may be masked in place.

    The data type declares the ring, so that all parties agree on it without looking at their
    values: bool, uint8 and uint16 ride in Z/2^16, uint32 in Z/2^32 (both unsigned), every other
    integer type in Z/2^64 (signed, two's complement).

    `DataError` of other numbers, `FixedPointOverflowError` if a value times `n_parties` would leave
    the ring: errors call the array `name` and its owner `party`.
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
    encoded = np.empty(array.shape, dtype=ring)
    flat, terms = encoded.reshape(-1), array.reshape(-1)
    for start in range(0, len(terms), _CHUNK):  # checked and copied while it is in the cache
        chunk = terms[start : start + _CHUNK]
        if int(chunk.max()) > limit or int(chunk.min()) < -limit:
            wider = {16: "uint32", 32: "int64"}.get(bits)
            remedy = "send it as float64, or rescale it"
            if wider:
                remedy = f"send it as {wider}, at every party"
            _checks.raise_out_of_range(array, limit, name, party, remedy)
        # Signed to unsigned of the same width or wider is reduction modulo 2^w.
        flat[start : start + _CHUNK] = chunk
    return encoded


def decode_integers(ring: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.integer[Any]]:
    """Turn an exact sum of what `encode_integers` returned back into integers, a view.

    The width tells their type: `encode_integers` keeps 64-bit sums within int64, and never makes
    narrower ones signed. `ProtocolError` of another data type.
    """
    if ring.dtype not in (np.uint16, np.uint32, np.uint64):
        raise ProtocolError(
            f"exact sums are arrays of uint16, uint32 or uint64, got {ring.dtype}; "
            "encode the terms with encode_integers"
        )
    return ring.view(np.int64) if ring.dtype == np.uint64 else ring
