"""Commutative blinding of sample IDs on X25519, for private alignment among any number of parties.

Each party hashes an ID to a point of Curve25519 and multiplies it with its own secret key. The
order of the parties does not matter, so once **all** have multiplied, equal IDs show as equal
points, and nobody can undo the blinding alone. Meadows, *A More Efficient Cryptographic
Matchmaking Protocol* (IEEE S&P 1986), and Huberman, Franklin and Hogg (EC 1999), on the curve of
RFC 7748. For whoever lacks the key, telling a blinded ID from a random point is the decisional
Diffie-Hellman problem (with the hash as a random oracle). A key is for one run: under the same
key, the same ID gives the same point.

Points are u-coordinates, 32 bytes each, little-endian, as the rows of a uint8 array. X25519 clears
the cofactor: every multiple lies in the subgroup of prime order 2^252 + ..., or in that of the
curve's twist.
"""

import secrets
from collections.abc import Callable, Sequence

import gmpy2
import numpy as np

from flwr_vertical.arrays import Bytes
from flwr_vertical.crypto import _x25519_pool as pool
from flwr_vertical.crypto._numbers import id_hasher, square_test
from flwr_vertical.crypto._x25519_worker import POINT_BYTES, LowOrderError
from flwr_vertical.errors import ConfigError, ProtocolError

PRIME = 2**255 - 19
MANY_POINTS = 20_000
"""Up to so many points, `blind` starts no processes unless told to."""

_A = 486662
_DOMAIN = b"fv-x25519-id-v1"
_LOW_MASK = 2**255 - 1
# The counter of the try-and-increment; all 256 fail once in 2^256 IDs.
_TRIES = [bytes([number]) for number in range(256)]
# u-coordinates of the points of order 2, 4 and 8 of the curve and its twist, below the prime
# (Bernstein, https://cr.yp.to/ecdh.html#validate).
_LOW_ORDER = frozenset(
    {
        0,
        1,
        PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)

Points = Bytes


def generate_blinding_key(random: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Return a fresh secret key, by default from the operating system's generator, 32 bytes."""
    return random(POINT_BYTES)


def hash_ids(ids: Sequence[bytes], context: bytes, secret: bytes | None = None) -> Points:
    """Hash each ID to a point of Curve25519 whose discrete logarithm nobody knows.

    Keyed BLAKE2b of a counter and the ID, counting up until 255 bits are the u-coordinate of a
    point **on the curve**: below p = 2^255 - 19, with u^3 + 486662 u^2 + u a nonzero square. A
    multiple of a point on the curve is on the curve, one of a point on its twist on the twist;
    half of all strings are either, so without this one bit of the hash would stay visible in every
    blinded value.

    The number of tries, hence the time, depends on the ID. That is no concern where a party
    hashes its own IDs, all at once, and answers later.
    """
    hasher = id_hasher(_DOMAIN, context, secret, POINT_BYTES)
    is_on_curve = _curve_test()
    points = bytearray()
    for sample in ids:
        for number in _TRIES:
            u = int.from_bytes(hasher(number + sample), "little") & _LOW_MASK
            if u < PRIME and is_on_curve(u):
                points += u.to_bytes(POINT_BYTES, "little")
                break
        else:
            raise AssertionError("256 independent tries of probability 1/2 have failed")
    return _rows(points)


def blind(points: Points, key: bytes, *, processes: int | None = None) -> Points:
    """Multiply each point with the key, in about 30 us per point and process."""
    _check_shape(points, "points to blind")
    return _blinded(len(points), lambda start, stop: points[start:stop], key, processes)


def hash_and_blind(
    ids: Sequence[bytes], context: bytes, key: bytes, secret: bytes | None = None
) -> Points:
    """Return ``blind(hash_ids(ids, context, secret), key)``, hashing while others blind."""
    return _blinded(len(ids), lambda start, stop: hash_ids(ids[start:stop], context, secret), key)


def check_and_blind(points: Points, sender: str, key: bytes) -> Points:
    """Return ``blind(points, key)`` after `check_points`, checking while others blind."""
    _check_shape(points, f"the points of party {sender!r}")

    def checked(start: int, stop: int) -> Points:
        check_points(points[start:stop], sender)
        return points[start:stop]

    return _blinded(len(points), checked, key)


def _blinded(
    count: int, prepare: Callable[[int, int], Points], key: bytes, processes: int | None = None
) -> Points:
    """Multiply points with the key, preparing some while those before are multiplied.

    Hashing and checking hold the interpreter's lock; blinding of many points happens in other
    processes, which would stand idle meanwhile.
    """
    if processes is not None and processes < 1:
        raise ConfigError(f"processes must be 1 or more, or None, got {processes}")
    if len(key) != POINT_BYTES:
        raise ProtocolError(f"a blinding key must be {POINT_BYTES} bytes, got {len(key)}")
    if processes is None:
        processes = pool.usable_cpus() if count > MANY_POINTS else 1
    out = bytearray(count * POINT_BYTES)
    try:
        pool.multiply(
            lambda start, stop: prepare(start, stop).tobytes(), key, memoryview(out), processes
        )
    except LowOrderError as error:
        raise ProtocolError(
            f"point {error.row} of {count} to blind is of low order: whatever the key, it would "
            "become zero; check_points says who sent it"
        ) from error
    return _rows(out)


def check_points(points: Points, sender: str) -> None:
    """Refuse points that another party cannot have got by honest hashing and blinding."""
    _check_shape(points, f"the points of party {sender!r}")
    is_on_curve = _curve_test()
    data = points.tobytes()
    n_bad = 0
    for start in range(0, len(data), POINT_BYTES):
        u = int.from_bytes(data[start : start + POINT_BYTES], "little")
        if u >= PRIME or u in _LOW_ORDER or not is_on_curve(u):
            n_bad += 1
    if n_bad:
        raise ProtocolError(
            f"{n_bad} of {len(points)} points of party {sender!r} are not blinded IDs (not "
            "reduced, not on Curve25519, or of low order): it runs another version, or cheats"
        )


def _curve_test() -> Callable[[int], bool]:
    """Return what says whether a u-coordinate below p is one of the curve, not of its twist."""
    is_square, a = square_test(PRIME), gmpy2.mpz(_A)

    def is_on_curve(number: int) -> bool:
        u = gmpy2.mpz(number)
        return is_square(u * (u * (u + a) + 1))

    return is_on_curve


def _rows(data: bytearray) -> Points:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, POINT_BYTES)


def _check_shape(points: Points, what: str) -> None:
    if points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != POINT_BYTES:
        raise ProtocolError(
            f"{what} must be uint8 of shape (n, {POINT_BYTES}), got {points.dtype} of shape "
            f"{points.shape}"
        )
