"""What hides rows to be imputed, donors and distances from the server that ranks them.

The parties share a seed that the server does not have. From it follow a secret order of all rows,
in which the server names them, and for each row ``i`` to be imputed a stream of its own:

- an order of the donors,
- a factor ``c_i``, log-uniform from 2^-4 to 2^4, and a shift ``a_i``, uniform from 0 to a few times
  the mean distance,
- a factor ``t_ij`` for each donor, log-uniform from 1 to 2^8.

Of its distances ``D_k`` and weights ``W_k`` party k sends ``t_ij c_i (D_k + a_i W_k)`` and ``t_ij
W_k``, cut to whole numbers after multiplication. Summed over parties and divided, this is
``c_i (D/W + a_i)``: in order, and all else that the server sees of a pair. Scale and order alone
would not do: rows that are donors of each other then tell their scales, and the matrix of distances
can be put together again. Weights that are seen tell which rows share which cells missing.

A row's stream is the same whenever the row comes again, so a second answer tells nothing new.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Integers
from flwr_vertical.products.streams import KeyStream, stream

Bits = npt.NDArray[np.uint64]

SCALE_BITS, FACTOR_BITS = 4, 8
"""Row factors reach from 2^-4 to 2^4, factors of pairs from 1 to 2^8."""

LOW_BITS = 31
"""Bits of the low half of a distance where ciphertexts carry it in two halves."""

HALF, WEIGHT_BITS = 2.0**LOW_BITS, 49
"""The halves are below this; weights have at most so many bits, which factors of 52 bits reach."""

_SPARE = 12  # bits of 64 that a factor does not need: they fill the low bits of large terms
_SPARE_BITS = np.uint64(2**_SPARE - 1)
_PART = 1 << 13  # donors at a time: what is computed of them stays in the cache
_HEAD = 2  # numbers of 64 bits for scale and shift
_ONE = np.uint64(0x3FF0000000000000)  # the bits of 1.0, whose mantissa is 0
_EXACT = np.uint64(0x4330000000000000)  # the bits of 2^52


@dataclass(frozen=True)
class Units:
    """The units in which distances and weights travel, as powers of two that all parties know."""

    distance: int  # Exponent of what multiplies distances
    # Exponent of the largest shift; None for none, where distances shall keep their ratios
    shift: int | None
    weight: int  # Exponent of what multiplies weights


def secret_order(seed: bytes, n_samples: int) -> Integers:
    """Return the order in which the server names rows: the aligned row at each place."""
    keys = stream(seed, "fknn order of rows", (n_samples,))
    return np.argsort(keys, kind="stable").astype(np.int64)


class Blinding:
    """Blinds one party's terms, row by row."""

    def __init__(
        self, seed: bytes, n_samples: int, n_donors: int, units: Units, n_terms: int
    ) -> None:
        self._n_donors, self._units = n_donors, units
        self._lowest = np.uint64(lowest(n_terms) + 1) if n_terms else None
        # Beyond 2^16 donors, too many would have the same key of 16 bits.
        self._key_bits = 16 if n_donors <= 1 << 16 else 32
        width = _HEAD + n_donors + -(-n_donors * self._key_bits // 64)
        self._stream = KeyStream(seed, "fknn rows", (n_samples, width))

    def order(self, place: int) -> npt.NDArray[np.intp]:
        """Return which donor stands at which place of a row's own order."""
        return self._order(self._stream.rows(place, place + 1)[0])

    def scale(self, place: int) -> float:
        """Return the factor of a row's distances."""
        return _scale_and_shift(self._stream.rows(place, place + 1)[0])[0]

    def blind(
        self,
        place: int,
        distance: Array,
        weight: npt.NDArray[np.uint16],
        terms: Integers,
        weights: Integers,
    ) -> npt.NDArray[np.intp]:
        """Blind this party's terms of one row.

        Shapes: distance, weight (n_donors,): in the parties' own order of donors; terms, weights
        (n_donors,): where the blinded distances and weights are written, in the row's own order;
        returns (n_donors,): that order, as `order` returns it.
        """
        numbers = self._stream.rows(place, place + 1)[0]
        order, units = self._order(numbers), self._units
        scale, shift = _scale_and_shift(numbers)
        shift = 0.0 if units.shift is None else shift * 2.0**units.shift
        scale *= 2.0**-units.weight
        for start in range(0, self._n_donors, _PART):
            part = slice(start, min(start + _PART, self._n_donors))
            bits = numbers[_HEAD:][part]
            factors = _factors(bits, units.weight)
            own = weight.take(order[part]).astype(np.float64)
            work = distance.take(order[part])
            if units.shift is not None:
                work += own * shift
            work *= factors
            work *= scale * 2.0**units.distance
            np.copyto(terms[part], work, casting="unsafe")
            own *= factors
            np.copyto(weights[part], own, casting="unsafe")
            if self._lowest is not None:
                low = ((bits & _SPARE_BITS) * self._lowest >> np.uint64(_SPARE)).view(np.int64)
                weights[part] += low
                if units.shift is not None:
                    terms[part] += low
                    terms[part] += _dither(bits, factors, scale)
        return order

    def _order(self, numbers: Bits) -> npt.NDArray[np.intp]:
        """Sort the donors by random keys; stable passes over 16 bits are much the fastest."""
        keys = numbers[_HEAD + self._n_donors :].astype("<u8", copy=False).view("<u2")
        order = np.argsort(keys[: self._n_donors], kind="stable")
        if self._key_bits == 32:
            high = keys[self._n_donors : 2 * self._n_donors]
            order = order[np.argsort(high[order], kind="stable")]
        return order


def _scale_and_shift(numbers: Bits) -> tuple[float, float]:
    """Return a row's factor, and its shift as a share of the largest."""
    scale, shift = (numbers[:_HEAD] >> np.uint64(_SPARE)).astype(np.float64) * 2.0**-52
    return float(2.0 ** (SCALE_BITS * (2 * scale - 1))), float(shift)


def lowest(n_parties: int) -> int:
    """Return the largest number that is added to sums so that equal terms do not show.

    Numbers from 0 to 11 are as often of each remainder when divided by 2, 3, 4 or 6.
    """
    return {1: 1, 2: 2, 3: 6}.get(n_parties, 12) - 1


def halves(terms: Integers) -> tuple[Array, Array]:
    """Split whole numbers into two halves that ciphertexts carry without loss."""
    return (terms >> LOW_BITS).astype(np.float64), (terms & (2**LOW_BITS - 1)).astype(np.float64)


def _factors(bits: Bits, unit: int) -> Array:
    """Return the factors of pairs times ``2^unit``: ``2^(8 x)``, x from 0 to 1 with 52 bits."""
    mantissas = bits >> np.uint64(_SPARE)
    mantissas |= _ONE  # read as floating point: 1 + x
    factors = mantissas.view(np.float64)
    factors *= FACTOR_BITS
    factors += unit - FACTOR_BITS
    return np.exp2(factors, out=factors)


def _dither(bits: Bits, factors: Array, scale: float) -> Integers:
    """Return numbers as large as the bits of terms that a float64 does not hold.

    Where factor and scale are largest, terms have up to 63 bits, of which 53 are held.
    """
    spare = bits & _SPARE_BITS
    spare |= _EXACT
    low = spare.view(np.float64)
    low -= 2.0**52
    low *= factors
    low *= scale * 2.0 ** (63 - 53 - _SPARE - SCALE_BITS - FACTOR_BITS)
    return low.astype(np.int64)
