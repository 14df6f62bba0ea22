"""Arithmetic modulo large numbers, and the keyed hash of sample IDs that private alignment uses."""

import hashlib
from collections.abc import Callable

import gmpy2

from flwr_vertical.errors import ConfigError

MIN_SECRET_BYTES = 16


def square_test(prime: int) -> Callable[[int], bool]:
    """Return a function that says whether a number is a nonzero square modulo an odd prime."""
    modulus = gmpy2.mpz(prime)
    return lambda value: bool(gmpy2.jacobi(value, modulus) == 1)


def power(base: int, exponent: int, modulus: int) -> int:
    """Return ``base**exponent % modulus``, for public exponents."""
    return int(gmpy2.powmod(base, exponent, modulus))


def power_secret(base: int, exponent: int, modulus: int) -> int:
    """Return ``base**exponent % modulus`` (odd) in a time that exponent's bits do not tell."""
    return int(gmpy2.powmod_sec(base, exponent, modulus))


def inverse(value: int, modulus: int) -> int:
    """Return the inverse of `value`; raise `ValueError` if it shares a factor with `modulus`."""
    try:
        return int(gmpy2.invert(value, modulus))
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
