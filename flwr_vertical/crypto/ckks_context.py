"""Parameters, keys and contexts of the encrypted sums; what they carry is in `ckks`.

Only additions are needed, so the parameters are the smallest that carry them at 128-bit security:
polynomials of degree 4096 and primes of 60 + 49 = 109 bits, the most that the Homomorphic
Encryption Security Standard (2018, table 1) allows there. A ciphertext lives modulo the 60-bit
prime; the 49-bit one only takes part in encryption, where dividing by it shrinks the fresh noise.
With scale 2^40 one ciphertext holds 2048 values in 64 KiB, 32 bytes per value.

Rejected: degree 8192 (the same 32 bytes per value, twice the error, keys twice the size; 57 bytes
with a third prime); primes 54 + 55 (30 bytes, but sums only up to 4096); 50 + 59 at scale 2^36 (29
bytes, error 1.2e-7, sums up to 4096). Degree 2048 leaves no room for the second prime, and the
library wants two.
"""

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flwr_vertical.errors import ProtocolError
from flwr_vertical.optional import require

POLY_MODULUS_DEGREE = 4096
COEFF_MOD_BIT_SIZES = (60, 49)
SCALE_BITS = 40
SLOTS = POLY_MODULUS_DEGREE // 2
"""Values per ciphertext."""
VALUE_LIMIT = 2.0 ** (COEFF_MOD_BIT_SIZES[0] - 2 - SCALE_BITS) - 1.0
"""Largest absolute value of a sum: 262143. The coefficients of an encoded polynomial are at most
scale * max |value|, and SEAL wants them below a quarter of the modulus."""


@dataclass(frozen=True)
class CkksKeys:
    """Keys of one run, made by the arbiter."""

    # Serialised context with both keys, about 187 kB. Never leaves the arbiter
    secret: bytes = field(repr=False)
    # Serialised context with the public key only, about 125 kB. For parties and server
    public: bytes = field(repr=False)


def generate_keys() -> CkksKeys:
    """Return a fresh key pair; `ConfigError` if TenSEAL is not installed."""
    ts = tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        POLY_MODULUS_DEGREE,
        coeff_mod_bit_sizes=list(COEFF_MOD_BIT_SIZES),
        n_threads=1,
    )
    context.global_scale = 2.0**SCALE_BITS
    # Rotations and products are never needed, so neither are their large keys.
    without = {"save_galois_keys": False, "save_relin_keys": False}
    return CkksKeys(
        secret=context.serialize(save_public_key=True, save_secret_key=True, **without),
        public=context.serialize(save_public_key=True, save_secret_key=False, **without),
    )


def tenseal() -> Any:
    """Import TenSEAL, which only encrypted sums need."""
    return require("tenseal", "an encrypted sum (at every party, the server and the arbiter)")


# Loading takes 17 ms, as long as encrypting 30 000 values, and a run has one public context.
@lru_cache(maxsize=4)
def load_public(public: bytes) -> Any:
    """Load the context that parties and server share."""
    context = _load_context(public)
    if context.is_private():
        raise ProtocolError("these CKKS keys hold the secret key, which must not leave the arbiter")
    if not context.has_public_key():
        raise ProtocolError("these CKKS keys hold no public key")
    return context


def load_secret(secret: bytes) -> Any:
    """Load the arbiter's context."""
    context = _load_context(secret)
    if not context.is_private():
        raise ProtocolError("these CKKS keys hold no secret key; only the arbiter's open sums")
    if not context.has_public_key():
        raise ProtocolError("these CKKS keys hold no public key, which names them")
    return context


def _load_context(serialised: bytes) -> Any:
    ts = tenseal()
    try:
        context = ts.context_from(bytes(serialised), 1)
        key_data = context.seal_context().data.key_context_data()
        got = (
            key_data.parms().poly_modulus_degree(),
            key_data.total_coeff_modulus_bit_count(),
            context.global_scale,
        )
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"these bytes are not a CKKS context: {error}") from error
    # Range, block size and security are those of these parameters only.
    expected = (POLY_MODULUS_DEGREE, sum(COEFF_MOD_BIT_SIZES), 2.0**SCALE_BITS)
    if got != expected:
        raise ProtocolError(
            f"the CKKS context has (degree, modulus bits, scale) {got}, expected {expected}; make "
            "it with generate_keys"
        )
    return context


def key_name(context: Any, n_first: int = len(COEFF_MOD_BIT_SIZES) * POLY_MODULUS_DEGREE) -> bytes:
    """Return two random numbers of a context's public key: 16 bytes, which name the key.

    Another secret key opens a ciphertext as well, and what comes is noise. So ciphertexts begin
    with the name of their key. The key's second polynomial, which is uniform, comes after `n_first`
    numbers of the first: the degree times the primes.
    """
    numbers = context.data.public_key().data()
    return struct.pack("<QQ", numbers[n_first], numbers[n_first + 1])


def check_key(name: bytes, message: bytes, where: str) -> None:
    """Raise if a ciphertext does not begin with the name of a key."""
    if not message.startswith(name):
        raise ProtocolError(f"{where} is not a CKKS ciphertext, or was made under another key")


def load_block(context: Any, block: bytes, where: str) -> Any:
    """Load one ciphertext."""
    name = key_name(context)
    check_key(name, block, where)
    try:
        vector = tenseal().ckks_vector_from(context, bytes(block[len(name) :]))
        size = vector.size()
        scales = [ciphertext.scale for ciphertext in vector.ciphertext()]
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"{where} is not a CKKS ciphertext: {error}") from error
    if not 1 <= size <= SLOTS or scales != [2.0**SCALE_BITS]:
        raise ProtocolError(f"{where} is not a CKKS ciphertext of 1 to {SLOTS} values")
    return vector


def dump_block(context: Any, vector: Any) -> bytes:
    """Return one ciphertext as `load_block` takes it."""
    ciphertext: bytes = vector.serialize()
    return key_name(context) + ciphertext
