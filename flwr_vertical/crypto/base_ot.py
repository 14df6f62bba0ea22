"""Random oblivious transfers in one message each way: the base of an extension to many.

Of two seeds the sender knows both and the chooser one; neither learns more. Masny and Rindal,
*Endemic Oblivious Transfer* (CCS 2019), with Diffie-Hellman on P-256: the chooser sends two points
whose sums with a hash of the other one are a key of its own and a point of which nobody knows the
logarithm; the sender agrees on a secret with both. P-256 because its order is prime (no point
betrays by a small order which one was made) and its points can be added.

Points travel compressed, 33 bytes each. What the chooser sends must reach the sender unchanged, and
the other way: their owners sign or seal them.
"""

import hashlib
import secrets

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from flwr_vertical.arrays import Bytes, Flags
from flwr_vertical.crypto._numbers import inverse, power, square_test
from flwr_vertical.errors import ProtocolError

POINT_BYTES = 33
SEED_BYTES = 16

# SEC 2, version 2, section 2.4.2; a = -3.
_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_CURVE = ec.SECP256R1()
_DOMAIN = b"fv-base-ot-v1"

Offers = Bytes
_Point = tuple[int, int]


def choose(choices: Flags, context: bytes) -> tuple[Offers, list[int]]:
    """Make the chooser's message, and the private keys for `chosen_seeds`.

    Shapes: choices (n,): which seed of each pair it shall have; returns (n, 2, 33), uint8: to the
    sender, from whom it hides the choices. `context` is of this run, the same at both.
    """
    offers = np.empty((len(choices), 2, POINT_BYTES), dtype=np.uint8)
    keys = []
    for number, (row, choice) in enumerate(zip(offers, choices.astype(int).tolist(), strict=True)):
        key = ec.generate_private_key(_CURVE)
        other = _encoded(_hashed(secrets.token_bytes(32), 0, number, b"free"))  # uniform
        own = _sum(_point(key.public_key()), _negative(_hashed(other, choice, number, context)))
        row[choice] = np.frombuffer(_encoded(own), dtype=np.uint8)
        row[1 - choice] = np.frombuffer(other, dtype=np.uint8)
        keys.append(key.private_numbers().private_value)
    return offers, keys


def send(offers: Offers, context: bytes, chooser: str) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the answer, 33 bytes, to the message of `chooser`; both seeds of each transfer.

    Shapes: offers (n, 2, 33): from `choose`; seeds have 16 bytes. `ProtocolError` if something in
    the message is not a point of the curve.
    """
    check_offers(offers, chooser)
    key = ec.generate_private_key(_CURVE)
    public = _encoded(_point(key.public_key()))
    seeds = []
    for number, row in enumerate(offers):
        pair = (row[0].tobytes(), row[1].tobytes())
        points = [_decoded(one, chooser) for one in pair]
        found = []
        for side in (0, 1):
            agreed = _sum(points[side], _hashed(pair[1 - side], side, number, context))
            found.append(_seed(key.exchange(ec.ECDH(), _key(agreed)), side, number, public, pair))
        seeds.append((found[0], found[1]))
    return public, seeds


def chosen_seeds(
    offers: Offers, choices: Flags, keys: list[int], public: bytes, sender: str
) -> list[bytes]:
    """Return the chooser's seed of each transfer, 16 bytes, from its message and the answer."""
    other = _key(_decoded(public, sender))
    seeds = []
    for number, (row, choice, value) in enumerate(
        zip(offers, choices.astype(int).tolist(), keys, strict=True)
    ):
        shared = ec.derive_private_key(value, _CURVE).exchange(ec.ECDH(), other)
        seeds.append(_seed(shared, choice, number, public, (row[0].tobytes(), row[1].tobytes())))
    return seeds


def check_offers(offers: Offers, chooser: str) -> None:
    """Raise `ProtocolError` if a chooser's message has another form."""
    if offers.dtype != np.uint8 or offers.ndim != 3 or offers.shape[1:] != (2, POINT_BYTES):
        raise ProtocolError(
            f"the offers of party {chooser!r} must be uint8 of shape (n, 2, {POINT_BYTES}), got "
            f"{offers.dtype} of shape {offers.shape}"
        )


def _hashed(data: bytes, side: int, number: int, context: bytes) -> _Point:
    """Hash to a point whose logarithm nobody knows; counts up until there is one."""
    is_square = square_test(_PRIME)
    place = number.to_bytes(4, "big") + len(context).to_bytes(4, "big") + context
    for count in range(256):
        tried = b"".join((_DOMAIN, b"point", bytes([side, count]), place, data))
        digest = hashlib.blake2b(tried, digest_size=48).digest()
        x = int.from_bytes(digest[:40], "big") % _PRIME
        square = (x * x * x - 3 * x + _B) % _PRIME
        if is_square(square):
            y = power(square, (_PRIME + 1) // 4, _PRIME)
            return x, y if digest[-1] % 2 == 0 else -y % _PRIME
    raise AssertionError("256 independent tries of probability 1/2 have failed")


def _sum(left: _Point, right: _Point) -> _Point:
    """Add two points of the curve."""
    (x1, y1), (x2, y2) = left, right
    if x1 == x2:
        # Twice a point, or a point and its negative: for points made as above once in 2^250.
        raise ProtocolError(
            "two points of a base transfer are the same or opposite: the other party cheats"
        )
    slope = (y2 - y1) * inverse(x2 - x1, _PRIME) % _PRIME
    x = (slope * slope - x1 - x2) % _PRIME
    return x, (slope * (x1 - x) - y1) % _PRIME


def _negative(point: _Point) -> _Point:
    return point[0], -point[1] % _PRIME


def _point(key: ec.EllipticCurvePublicKey) -> _Point:
    numbers = key.public_numbers()
    return numbers.x, numbers.y


def _key(point: _Point) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicNumbers(*point, _CURVE).public_key()


def _encoded(point: _Point) -> bytes:
    return _key(point).public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _decoded(data: bytes, owner: str) -> _Point:
    try:
        if len(data) != POINT_BYTES:
            raise ValueError("wrong length")
        return _point(ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, data))
    except ValueError as error:
        raise ProtocolError(
            f"party {owner!r} sent {len(data)} bytes that are no compressed point of P-256: it "
            "runs another version, or cheats"
        ) from error


def _seed(secret: bytes, side: int, number: int, public: bytes, pair: tuple[bytes, bytes]) -> bytes:
    parts = (_DOMAIN, b"seed", bytes([side]), number.to_bytes(4, "big"), public, *pair, secret)
    return hashlib.blake2b(b"".join(parts), digest_size=SEED_BYTES).digest()
