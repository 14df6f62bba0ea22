"""What hides rows to be imputed, donors and distances from the server that ranks them.

The parties share a seed that the server does not have. From it follow a secret order of all rows,
in which the server names them, and for each row ``i`` to be imputed a stream of its own:

- an order of the complete donors, and one of those that lack cells,
- a factor ``c_i``, log-uniform from 2^-4 to 2^4, and a shift ``a_i``, uniform from 0 to a few times
  the mean distance,
- a factor ``t_ij`` for each donor that lacks cells, and one for all complete donors, log-uniform
  from 1 to 2^8.

Of its distances ``D_k`` and weights ``W_k`` party k sends ``t_ij c_i (D_k + a_i W_k)`` and ``t_ij
W_k``, cut to whole numbers after multiplication. Summed over parties and divided, this is
``c_i (D/W + a_i)``: in order, and all else that the server sees of a pair. Scale and order alone
would not do: rows that are donors of each other then tell their scales, and the matrix of distances
can be put together again. Weights that are seen tell which rows share which cells missing. Complete
donors weigh the same, whatever cells the row has, so their weight is sent once.

A row's stream is the same whenever the row comes again, so a second answer tells nothing new.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Integers, Integers32, Ring, Unsigned16
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products.streams import KeyStream, stream

Bits = Ring

SCALE_BITS, FACTOR_BITS = 4, 8
"""Row factors reach from 2^-4 to 2^4, factors of pairs from 1 to 2^8."""

LOW_BITS = 31
"""Bits of the low half of a distance where ciphertexts carry it in two halves."""

HALF, WEIGHT_BITS = 2.0**LOW_BITS, 49
"""The halves are below this; weights have at most so many bits, which factors of 52 bits reach."""

FEWEST = min_rows(0, 0)
"""Donors of a kind, at least: of few, the server could guess which is which from row to row."""

_UNUSED = np.uint64(12)  # bits of 64 that a factor does not need
_PART = 1 << 15  # donors at a time: what is computed of them stays in the cache
_HEAD = 3  # numbers of 64 bits for scale, shift, and the factor of complete donors
_ONE = np.uint64(0x3FF0000000000000)  # the bits of 1.0, whose mantissa is 0
_SORTED, _TILE = 1 << 16, 256
"""Of more donors, too many would have the same key of 16 bits: so many are sorted at a time."""


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


def kinds_of_donors(n_complete: int, n_lacking: int, most: int) -> tuple[int, int]:
    """Return how many complete donors and how many in all rows are compared with.

    Complete ones come first. None counts as complete where a kind would have fewer than `FEWEST`;
    a few that lack cells are left out where not all donors are taken anyway.
    """
    n_donors = min(n_complete + n_lacking, most)
    n_others = max(n_donors - n_complete, 0)
    n_complete = n_donors - n_others
    if not 0 < min(n_complete, n_others) < FEWEST:
        return n_complete, n_donors
    if n_complete >= FEWEST and n_others < n_lacking:
        return n_complete, n_complete
    return 0, n_donors


class Blinding:
    """Blinds one party's terms, row by row; complete donors come first."""

    def __init__(
        self,
        seed: bytes,
        n_samples: int,
        n_donors: int,
        n_complete: int,
        units: Units,
        n_parties: int = 0,
        number: int = 0,
    ) -> None:
        self._n_donors, self._n_complete, self._units = n_donors, n_complete, units
        # Of `n_parties` which take turns, party `number` fills low bits of a row; of none, nobody.
        self._n_parties, self._number = n_parties, number
        self._n_numbers = _HEAD + n_donors - n_complete
        # Behind the numbers of 64 bits, of 16: low bits of donors, keys of donors, keys of tiles.
        width = self._n_numbers + -(-(2 * n_donors + n_donors // _TILE) // 4)
        self._stream = KeyStream(seed, "fknn rows", (n_samples, width))

    def order(self, place: int) -> Integers32:
        """Return which donor stands at which place of a row's own order."""
        return self._order(self._stream.rows(place, place + 1)[0])

    def scale(self, place: int) -> float:
        """Return the factor of a row's distances."""
        return _scale_and_shift(self._stream.rows(place, place + 1)[0])[0]

    def blind(
        self, place: int, distance: Array, weight: Unsigned16, terms: Integers, weights: Integers
    ) -> Integers32:
        """Blind this party's terms of one row.

        Shapes: distance (n_donors,), weight (1 + n_donors - n_complete,): in the parties' own order
        of donors, the first weight that of all complete ones; terms, weights: of the same shapes,
        where the blinded distances and weights are written, in the row's own order; returns
        (n_donors,): that order, as `order` returns it.
        """
        numbers = self._stream.rows(place, place + 1)[0]
        order, n_complete, units = self._order(numbers), self._n_complete, self._units
        scale, shift = _scale_and_shift(numbers)
        shift = 0.0 if units.shift is None else shift * 2.0**units.shift
        scale *= 2.0**-units.weight
        factors = _factors(numbers[2 : self._n_numbers], units.weight)
        own = weight.astype(np.float64)
        own[1:] = own[1:].take(order[n_complete:] - n_complete)
        np.copyto(weights, own * factors, casting="unsafe")
        own *= shift
        spare = self._of_16_bits(numbers)
        fills = self._n_parties and place % self._n_parties == self._number
        most = np.uint32(lowest(self._n_parties) + 1)
        for start, stop in self._parts(_PART):
            at = slice(0, 1)
            if start >= n_complete:
                at = slice(start - n_complete + 1, stop - n_complete + 1)
            work = distance.take(order[start:stop])
            work += own[at]
            work *= factors[at] * (scale * 2.0**units.distance)
            np.copyto(terms[start:stop], work, casting="unsafe")
            if fills:
                low = spare[start:stop] * most >> np.uint32(16)
                if start == 0 or start >= n_complete:
                    weights[at] += low[: at.stop - at.start]
                if units.shift is not None:
                    terms[start:stop] += _dither(spare[start:stop], factors[at], scale)
                    terms[start:stop] += low
        return order

    def _parts(self, size: int) -> Iterator[tuple[int, int]]:
        """Go through the complete donors, then through the others."""
        for first, last in ((0, self._n_complete), (self._n_complete, self._n_donors)):
            for start in range(first, last, size):
                yield start, min(start + size, last)

    def _of_16_bits(self, numbers: Bits) -> Unsigned16:
        return numbers[self._n_numbers :].astype("<u8", copy=False).view("<u2")

    def _order(self, numbers: Bits) -> Integers32:
        """Sort the donors by random keys; a stable pass over 16 bits is much the fastest."""
        n_donors, n_complete = self._n_donors, self._n_complete
        keys = self._of_16_bits(numbers)[n_donors:]
        order = np.empty(n_donors, dtype=np.int32)
        for start, stop in self._parts(_SORTED):
            first, last = (0, n_complete) if start < n_complete else (n_complete, n_donors)
            donors = np.arange(start, stop, dtype=np.int32)
            if last - first > _SORTED:
                # Tiles are sorted first, so that no donor is among the same 2^16 in all rows.
                if start == first:
                    of_tiles = keys[n_donors + first // _TILE :][: (last - first) // _TILE]
                    tiles = np.argsort(of_tiles, kind="stable").astype(np.int32) * _TILE + first
                here = tiles[(start - first) // _TILE : (stop - first) // _TILE]
                whole = donors[: len(here) * _TILE].reshape(-1, _TILE)
                whole[:] = here[:, None] + np.arange(_TILE, dtype=np.int32)
            places = np.argsort(keys[start:stop], kind="stable")
            donors.take(places, out=order[start:stop], mode="clip")
        return order


def _scale_and_shift(numbers: Bits) -> tuple[float, float]:
    """Return a row's factor, and its shift as a share of the largest."""
    scale, shift = (numbers[:2] >> _UNUSED).astype(np.float64) * 2.0**-52
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
    mantissas = bits >> _UNUSED
    mantissas |= _ONE  # read as floating point: 1 + x
    factors = mantissas.view(np.float64)
    factors *= FACTOR_BITS
    factors += unit - FACTOR_BITS
    return np.exp2(factors, out=factors)


def _dither(bits: Unsigned16, factors: Array, scale: float) -> Integers:
    """Return numbers as large as the bits of terms that a float64 does not hold.

    Where factor and scale are largest, terms have up to 63 bits, of which 53 are held.
    """
    low = bits * (factors * (scale * 2.0 ** (63 - 53 - 16 - SCALE_BITS - FACTOR_BITS)))
    return low.astype(np.int64)
