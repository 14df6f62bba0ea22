"""Arithmetic modulo large numbers, and the keyed hash of sample IDs that private alignment uses.

gmpy2 does the arithmetic about 30 times faster; without it Python's own `pow` gives the same
numbers.
"""

import hashlib
import importlib
from collections.abc import Callable
from typing import Any

from flwr_vertical.errors import ConfigError

MIN_SECRET_BYTES = 16

_gmpy2: Any
try:
    # Not an import statement: gmpy2 has no type stubs.
    _gmpy2 = importlib.import_module("gmpy2")
except ImportError:
    _gmpy2 = None

integer: Callable[[int], Any] = int if _gmpy2 is None else _gmpy2.mpz
"""Makes a number with which arithmetic is fast where it is long."""


def square_test(prime: int) -> Callable[[int], bool]:
    """Return a function that says whether a number is a nonzero square modulo an odd prime."""
    if _gmpy2 is None:
        return lambda value: pow(value, (prime - 1) // 2, prime) == 1
    jacobi, modulus = _gmpy2.jacobi, _gmpy2.mpz(prime)
    return lambda value: jacobi(value, modulus) == 1


def power(base: int, exponent: int, modulus: int) -> int:
    """Return ``base**exponent % modulus``, for public exponents."""
    if _gmpy2 is None:
        return pow(base, exponent, modulus)
    return int(_gmpy2.powmod(base, exponent, modulus))


def power_secret(base: int, exponent: int, modulus: int) -> int:
    """Return ``base**exponent % modulus`` for an odd modulus.

    With gmpy2 the time does not depend on the bits of the exponent; with Python's `pow` it may.
    """
    if _gmpy2 is None:
        return pow(base, exponent, modulus)
    return int(_gmpy2.powmod_sec(base, exponent, modulus))


def inverse(value: int, modulus: int) -> int:
    """Return the inverse of `value`; raise `ValueError` if it shares a factor with `modulus`."""
    if _gmpy2 is None:
        return pow(value, -1, modulus)
    try:
        return int(_gmpy2.invert(value, modulus))
    except ZeroDivisionError as error:
        raise ValueError("not invertible for the given modulus") from error


def id_hasher(
    purpose: bytes, context: bytes, secret: bytes | None, digest_size: int
) -> Callable[[bytes], bytes]:
    """Return a hash function of its own for each purpose, context and secret.

    BLAKE2b (RFC 7693), keyed if there is a secret. The purpose is its personalisation, so that no
    two uses share a function; the context comes with its length before it, the message last, so
    that no two inputs read alike.
    """
    key = b""
    if secret is not None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the secret that the parties share must be at least {MIN_SECRET_BYTES} bytes, got "
                f"{len(secret)}; make one with secrets.token_bytes(32)"
            )
        key = hashlib.blake2b(secret, person=purpose).digest()
    start = hashlib.blake2b(
        len(context).to_bytes(8, "big") + context, digest_size=digest_size, key=key, person=purpose
    )

    def hasher(message: bytes) -> bytes:
        state = start.copy()
        state.update(message)
        return state.digest()

    return hasher
