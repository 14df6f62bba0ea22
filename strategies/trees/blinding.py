"""What the arbiter sees of a candidate: sums times random factors, plus noise, in a random order.

Server and helper hold shares of N, H'_L and H'_R (`gains`). Both multiply theirs by the same whole
factors, a, b_L and b_R, and put the candidates of a node into the same random order; the helper
adds noise. The arbiter adds the shares up:

    x = a N + e_1,    y_L = b_L H'_L + e_2,    y_R = b_R H'_R + e_3,    x^2 / (y_L y_R) ~ gain.

With M above every ``|N|`` of the node (or every ``H'``), noise is uniform on [0, M). b_L and b_R
are log-uniform over 2^6, and a is ``+-sqrt(b_L b_R)``; both sizes have two bits of jitter a node.
So the gains keep their order, up to a factor, to some 2^-20, and neither a sign, a
size nor a divisor of a sum is left. Factors per node alone would be found by a gcd.

Noise is above 2^24 in nodes of any size, so shares travel without their low 24 bits: five bytes of
each eight. Helpers send theirs, of the candidates that they have shares of, under pads that parties
and arbiter know, and the server does not; it adds its own, and passes one number of each on.

All factors follow from a seed, and server and helpers must come to the same whole numbers: nothing
but additions, multiplications and square roots is used, which IEEE 754 rounds alike everywhere.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import Array, Bytes, Integers, Ring
from flwr_vertical.products.streams import stream

_T = TypeVar("_T", bound=np.generic)

TOP = 2.0**61
"""No blinded sum exceeds it, but for noise."""

WIRE_BYTES = 5
"""Of a blinded number on its way to the arbiter: the low three bytes are noise."""

_DROPPED = 64 - 8 * WIRE_BYTES

_RANGE = 6  # powers of two over which factors are spread
_STEPS = 16  # bits of a logarithm's fraction


def _powers() -> Array:
    """Return 2^(i / 2^16), built from square roots and products."""
    root, table = np.float64(2.0), np.ones(1)
    for _ in range(_STEPS):
        root = np.sqrt(root)
        table = np.stack([table, table * root], axis=1).reshape(-1)
    return table


# At 0, 1/2, 1/4, 3/4, ...: the order does not matter, as the index is random.
_POWERS = _powers()


@dataclass(frozen=True)
class Factors:
    """Factors and order of the candidates of some nodes."""

    numerator: Ring  # (n_nodes, n_candidates): ``a``, ``b_L`` and ``b_R``
    left: Ring  # (n_nodes, n_candidates): ``a``, ``b_L`` and ``b_R``
    right: Ring  # (n_nodes, n_candidates): ``a``, ``b_L`` and ``b_R``
    order: Integers  # The candidate that stands at each place

    @classmethod
    def of(cls, seed: bytes, limits: Array, n_candidates: int) -> "Factors":
        """Draw them from a seed that server and helpers share, and the arbiter does not have.

        Shapes: limits (2, n_nodes): M of each node, for N and for H'.
        """
        n_nodes = limits.shape[1]
        drawn = stream(seed, "factors", (2 * n_nodes * (n_candidates + 1),))
        jitter, rest = drawn[: 2 * n_nodes].reshape(2, -1), drawn[2 * n_nodes :]
        words, keys = rest.reshape(2, n_nodes, n_candidates)
        least = TOP / np.maximum(limits, 1.0) * 2.0 ** -(_RANGE + 2)
        alpha, beta = least * np.stack([_spread(row, 2) for row in jitter])
        left = np.floor(beta[:, None] * _spread(words, _RANGE))
        right = np.floor(beta[:, None] * _spread(words >> np.uint64(24), _RANGE))
        size = alpha[:, None] * np.sqrt((left / beta[:, None]) * (right / beta[:, None]))
        # Where a is small, what its rounding takes away is taken from b_R.
        right = np.floor(right * (np.floor(size) / size) ** 2)
        sign = np.where(words >> np.uint64(63), -1.0, 1.0)
        return cls(
            (np.floor(size) * sign).astype(np.int64).view(np.uint64),
            left.astype(np.uint64),
            right.astype(np.uint64),
            np.argsort(keys, axis=1),  # equal keys of 64 bits do not occur
        )

    def blinded(
        self, numerator: Ring, left: Ring, right: Ring, of: npt.NDArray[np.intp] | None = None
    ) -> Ring:
        """Return shares of N, H'_L and H'_R times factors, of some candidates: (3, n_nodes, n)."""
        at = slice(None) if of is None else of
        factors = self.numerator[:, at], self.left[:, at], self.right[:, at]
        return np.stack([a * x for a, x in zip(factors, (numerator, left, right), strict=True)])

    def placed(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return values of candidates, (..., n_nodes, n_candidates), in the order of places."""
        return np.take_along_axis(values, np.broadcast_to(self.order, values.shape), axis=-1)

    def unplaced(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return values of places in the order of candidates."""
        out = np.empty_like(values)
        np.put_along_axis(out, np.broadcast_to(self.order, values.shape), values, axis=-1)
        return out


def coarse(values: Ring) -> Ring:
    """Return numbers modulo 2^64 without the bits that are less than the noise: modulo 2^40."""
    return np.asarray(values >> np.uint64(_DROPPED))


def to_wire(values: Ring) -> Bytes:
    """Return numbers modulo 2^40 as bytes, (..., 5)."""
    whole = np.ascontiguousarray(values, dtype="<u8").view(np.uint8)
    return np.ascontiguousarray(whole.reshape(*values.shape, 8)[..., :WIRE_BYTES])


def from_wire(content: Bytes) -> Ring:
    """Return what `to_wire` wrote."""
    whole = np.zeros((*content.shape[:-1], 8), dtype=np.uint8)
    whole[..., :WIRE_BYTES] = content
    return whole.view("<u8")[..., 0].astype(np.uint64, copy=False)


def opened(shares: Ring, pads: Ring) -> Ring:
    """Return blinded sums, from what the server sent, modulo 2^40, and pads that are in it."""
    return np.asarray((shares - coarse(pads)) << np.uint64(_DROPPED))


def noise(seed: bytes, limits: Array, n_candidates: int) -> Ring:
    """Return uniform noise on [0, M), shape (3, n_nodes, n_candidates)."""
    shape = 3, limits.shape[1], n_candidates
    words = stream(seed, "noise", shape) >> np.uint64(11)
    share = words.astype(np.float64) * 2.0**-53
    return np.floor(share * limits[[0, 1, 1], :, None]).astype(np.uint64)


def _spread(words: Ring, powers: int) -> Array:
    """Return 2^u, u nearly uniform on [0, powers), from 24 random bits of each word."""
    whole = (1 << np.arange(256) % powers).astype(np.float64)
    fraction = _POWERS[(words >> np.uint64(8)).astype(np.uint16)]
    return np.asarray(fraction * whole[words.astype(np.uint8)])
