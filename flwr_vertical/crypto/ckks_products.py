"""Products A'B of two parties' columns under CKKS, which only the arbiter can open.

Party k encrypts each column of A; party l multiplies by its own columns B, not encrypted, and adds
over blocks of rows. The total of one pair of columns is then the sum over the slots, which is
SLOTS times the constant coefficient of the plaintext polynomial. So party l hands on what opens
this one coefficient: one polynomial and one number, instead of two polynomials. Measured on one
core, with columns of root mean square 1 (`RMS_LIMIT` is the most allowed, over all n rows):

======  ==========================================================================================
error   1.1e-8 * n to 2e-8 * n in root mean square, 8e-8 * n at most in 20 000 products of 10 to
        200 000 rows, so relative to the product of the columns' norms. A good half of it, the
        drowning below, does not shrink with the columns: standardise them
size    a column 64 bytes per value, in ciphertexts of 4096 rows; a product 64 kB
time    encrypt 1.1 us per value; multiply 50 ns per row and pair of columns and 6 ms per pair; open
        0.6 ms. So 15 by 31 columns of 166 207 rows take 3 s, 7 s and 0.3 s
memory  at party l 262 kB per pair, besides the encrypted columns
======  ==========================================================================================

**What it gives**, against parties that follow the protocol. Party l and the server see ciphertexts
of A. The arbiter sees the totals, n, and nothing else about A or B, even if it works with party k:

- The sums within slots are not masked but absent. Completing the ciphertext with random numbers
  decrypts to slots that are uniform but for their sum.
- The polynomial that is sent contains a fresh encryption under the public key, so it tells nothing
  about B as long as ring learning with errors is hard (128-bit parameters).
- The noise in the constant coefficient depends on B and A's encryption. A random integer drowns it:
  uniform, and 2^40 times wider than the noise can be. So what the arbiter decrypts is within
  statistical distance 2^-40, per product, of the total (of the encoded columns) plus that integer.

**What it does not give.** The arbiter can decrypt party k's columns: they must not come to it, so
it must be neither party l nor the server. A party k that departs from the protocol can encrypt what
picks single rows of B, and nothing here bounds what A'B itself tells. Products leave the arbiter
rounded (why is told in `ckks`): noise that party l has drowned by a number it knows is found in
less than one in 2^33 of them. Make fresh keys for each run.
"""

import math
import secrets
import struct
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_vertical.arrays import Array
from flwr_vertical.crypto import _checks
from flwr_vertical.crypto.ckks_context import CkksKeys, check_key, key_name, tenseal
from flwr_vertical.errors import DataError, FixedPointOverflowError, ProtocolError

POLY_MODULUS_DEGREE = 8192
COEFF_MOD_BIT_SIZES = (60, 60, 60)
"""180 bits, of 218 allowed at 128-bit security. The last prime only takes part in encryption, the
second is divided out of the products."""
SLOTS = POLY_MODULUS_DEGREE // 2
"""Rows per ciphertext."""
RMS_LIMIT = 64.0
"""Largest root mean square of a column over all rows. A total is then at most 4096 n."""
HIDING_BITS = 40
_RELEASE_BITS = 32
# The same in units of what is decrypted: the scales make up for the number of rows.
_RELEASE_SHIFT = sum(COEFF_MOD_BIT_SIZES[:2]) - 2 - _RELEASE_BITS - 12 - COEFF_MOD_BIT_SIZES[1]
_NOISE_STD = 22.0  # of a fresh ciphertext's coefficients: sqrt((1 + 2/3 * degree) / 12) = 21.4
# Standard deviations that noise passes with probability 2^-49 where its tails are the heaviest: if
# all of B sits in one slot, where noise is normal times what the secret key is there.
_NOISE_TAIL = 24.0
_LOW_BITS = 40
_HEADER = struct.Struct("<16sQ")  # key, number of rows


class _Ring:
    """A loaded context and the tools that work on its ciphertexts."""

    def __init__(self, serialised: bytes) -> None:
        ts = tenseal()
        self.api = import_module("tenseal.sealapi")
        try:
            self.context = ts.context_from(bytes(serialised), 1)
            seal = self.context.seal_context().data
            parms = seal.key_context_data().parms()
            self.primes = [modulus.value() for modulus in parms.coeff_modulus()]
            got = (parms.poly_modulus_degree(), *(prime.bit_length() for prime in self.primes))
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"these bytes are not a CKKS context: {error}") from error
        expected = (POLY_MODULUS_DEGREE, *COEFF_MOD_BIT_SIZES)
        if got != expected:
            raise ProtocolError(
                f"the CKKS context has (degree, bits of each prime) {got}, expected {expected}; "
                "make it with generate_product_keys"
            )
        if not self.context.has_public_key():
            raise ProtocolError("these CKKS keys hold no public key")
        self.key_name = key_name(self.context, len(self.primes) * POLY_MODULUS_DEGREE)
        key = self.context.data.public_key()
        self.encryptor = self.api.Encryptor(seal, key)
        self.evaluator = self.api.Evaluator(seal)
        self._encoder, self._level = self.api.CKKSEncoder(seal), seal.first_parms_id()

    def encode(self, values: list[float] | float, scale: float) -> Any:
        plain = self.api.Plaintext()
        self._encoder.encode(values, self._level, scale, plain)
        return plain

    def read_header(self, message: bytes, where: str) -> int:
        """Return the number of rows."""
        check_key(self.key_name, message, where)
        if len(message) < _HEADER.size:
            raise ProtocolError(f"{where} is not a CKKS ciphertext: it has no number of rows")
        return int(_HEADER.unpack_from(message)[1])

    def load_block(self, block: bytes, n_rows: int, where: str) -> Any:
        """Return one block of an encrypted column, as SEAL's ciphertext."""
        got = self.read_header(block, where)
        if got != n_rows:
            raise ProtocolError(
                f"{where} is from a column of {got} rows, the matrix has {n_rows}; both parties "
                "must take the same rows in the same order, with zeros where one lacks a row"
            )
        try:
            vector = tenseal().ckks_vector_from(self.context, block[_HEADER.size :])
            (ciphertext,) = vector.ciphertext()
            form = (vector.size(), ciphertext.size(), ciphertext.coeff_modulus_size())
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"{where} is not a CKKS ciphertext: {error}") from error
        scale = 2.0 ** _scale_bits(n_rows)[0]
        if form != (SLOTS, 2, 2) or ciphertext.scale != scale or ciphertext.is_transparent():
            raise ProtocolError(f"{where} is not a CKKS ciphertext of {SLOTS} rows of a column")
        return ciphertext


def generate_product_keys() -> CkksKeys:
    """Return a fresh key pair: 590 kB that stay with the arbiter, 393 kB for the parties."""
    ts = tenseal()
    sizes = list(COEFF_MOD_BIT_SIZES)
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, POLY_MODULUS_DEGREE, coeff_mod_bit_sizes=sizes, n_threads=1
    )
    parts = {"save_public_key": True, "save_galois_keys": False, "save_relin_keys": False}
    return CkksKeys(
        secret=context.serialize(save_secret_key=True, **parts),
        public=context.serialize(save_secret_key=False, **parts),
    )


def encrypt_columns(
    public: bytes, matrix: ArrayLike, name: str = "matrix", party: str | None = None
) -> list[list[bytes]]:
    """Encrypt the columns of A, at party k."""
    ring = _load_public(public)
    A = _checked_matrix(matrix, name, party)
    header, scale = _HEADER.pack(ring.key_name, len(A)), 2.0 ** _scale_bits(len(A))[0]
    ts = tenseal()
    return [
        [
            # Padded by hand: TenSEAL would fill the slots by repeating the values.
            header + ts.ckks_vector(ring.context, _padded(column, start), scale).serialize()
            for start in range(0, len(A), SLOTS)
        ]
        for column in A.T
    ]


def cross_products(
    public: bytes,
    columns: Sequence[Sequence[bytes]],
    matrix: ArrayLike,
    name: str = "matrix",
    party: str | None = None,
) -> list[bytes]:
    """Multiply encrypted columns of A by the columns of B, at party l."""
    ring = _load_public(public)
    B = _checked_matrix(matrix, name, party)
    n_rows, q = B.shape
    n_blocks = -(-n_rows // SLOTS)
    for i, blocks in enumerate(columns):
        if len(blocks) != n_blocks:
            raise ProtocolError(
                f"encrypted column {i} has {len(blocks)} blocks, the {n_rows} rows of "
                f"{_checks.label(name, party)} make {n_blocks}"
            )
    scale = 2.0 ** _scale_bits(n_rows)[1]
    totals = [[_drowning(ring, n_rows) for _ in range(q)] for _ in columns]
    product = ring.api.Ciphertext()
    for index in range(n_blocks):
        encoded = [ring.encode(_padded(column, index * SLOTS), scale) for column in B.T]
        # SEAL refuses to multiply by zero, which would not encrypt anything.
        used = [j for j, plain in enumerate(encoded) if not plain.is_zero()]
        for i, blocks in enumerate(columns):
            where = f"block {index} of encrypted column {i}"
            ciphertext = ring.load_block(blocks[index], n_rows, where)
            for j in used:
                ring.evaluator.multiply_plain(ciphertext, encoded[j], product)
                ring.evaluator.add_inplace(totals[i][j], product)
    return [_constant_term(ring, total, n_rows) for row in totals for total in row]


def open_products(secret: bytes, ciphertexts: Sequence[bytes], shape: tuple[int, int]) -> Array:
    """Decrypt A'B, at the arbiter."""
    if len(ciphertexts) != math.prod(shape):
        raise ProtocolError(
            f"products of shape {tuple(shape)} need {math.prod(shape)} ciphertexts, got "
            f"{len(ciphertexts)}"
        )
    ring, phases = _phases(secret, ciphertexts)
    totals = np.empty(len(ciphertexts))
    for index, (n_rows, phase) in enumerate(phases):
        grid = 2.0 ** (_row_bits(n_rows) - _RELEASE_BITS)
        totals[index] = round(_total(ring, phase, n_rows, index) / grid) * grid
    return totals.reshape(tuple(shape))


def blind(
    public: bytes, ciphertexts: Sequence[bytes], pads: Sequence[int]
) -> tuple[list[bytes], list[int]]:
    """Add a number to each product that the arbiter is to open, at the server.

    Modulo the prime under which they are opened, uniform pads leave uniform numbers: the arbiter
    learns nothing of the products, and without its key the pads tell the server nothing either.
    """
    prime = _load_public(public).primes[0]
    out, used = [], []
    for message, pad in zip(ciphertexts, pads, strict=True):
        at = _HEADER.size
        constant = (int.from_bytes(message[at : at + 8], "little") + pad) % prime
        out.append(message[:at] + constant.to_bytes(8, "little") + message[at + 8 :])
        used.append(pad % prime)
    return out, used


def product_unit(public: bytes, n_rows: int) -> float:
    """Return what 1 stands for in a product that is still closed, of columns of so many rows."""
    prime = _load_public(public).primes[1]
    return float(SLOTS * prime / 2 ** sum(_scale_bits(n_rows)))


def add_noise(public: bytes, ciphertexts: Sequence[bytes], noise: Sequence[int]) -> list[bytes]:
    """Add whole numbers of `product_unit` to products, at the party that made them."""
    return blind(public, ciphertexts, noise)[0]


def open_blinded(secret: bytes, ciphertexts: Sequence[bytes]) -> Array:
    """Decrypt products that were blinded, at the arbiter."""
    phases = _phases(secret, ciphertexts)[1]
    unit = 1 << _RELEASE_SHIFT
    return np.array([(phase + unit // 2) // unit * unit for _, phase in phases], dtype=np.float64)


def unblind(public: bytes, opened: Array, pads: Sequence[int], n_rows: Sequence[int]) -> Array:
    """Take the pads off (n_products,) that the arbiter opened in `open_blinded`; at the server."""
    ring = _load_public(public)
    return np.array(
        [
            _total(ring, (int(phase) - pad) % ring.primes[0], rows, index)
            for index, (phase, pad, rows) in enumerate(zip(opened, pads, n_rows, strict=True))
        ]
    )


def _phases(secret: bytes, ciphertexts: Sequence[bytes]) -> tuple[_Ring, list[tuple[int, int]]]:
    """Decrypt: of each product the number of rows, and a number modulo the first prime."""
    ring = _Ring(secret)
    if not ring.context.is_private():
        raise ProtocolError("these CKKS keys hold no secret key; only the arbiter's open products")
    prime = ring.primes[0]
    inverse = pow(POLY_MODULUS_DEGREE, -1, prime)
    coefficients = ring.context.data.secret_key().data()
    key = np.array([coefficients[i] for i in range(POLY_MODULUS_DEGREE)], dtype=object)
    found = []
    for index, message in enumerate(ciphertexts):
        n_rows = ring.read_header(message, f"product {index}")
        words = np.frombuffer(message[_HEADER.size : len(message) & ~7], dtype="<u8")
        if len(message) % 8 or len(words) != 1 + len(key) or words.max() >= prime or n_rows < 1:
            raise ProtocolError(f"product {index} is not a ciphertext made by cross_products")
        constant, *_ = words.tolist()
        # The mean over the roots again, of the second polynomial times the key.
        found.append((n_rows, (constant + int(words[1:].astype(object) @ key) * inverse) % prime))
    return ring, found


def _total(ring: _Ring, phase: int, n_rows: int, index: int) -> float:
    """Return the product that a number modulo the first prime stands for."""
    prime, divided_out = ring.primes[:2]
    phase -= prime if phase > prime // 2 else 0
    total = float(phase * SLOTS * divided_out / 2 ** sum(_scale_bits(n_rows)))
    if abs(total) > 1.001 * RMS_LIMIT**2 * 2 ** _row_bits(n_rows):
        raise ProtocolError(
            f"product {index} is larger than any can be: it, or its encrypted column, was "
            "changed on its way"
        )
    return total


# Loading takes some 20 ms, and a run has one public context.
@lru_cache(maxsize=4)
def _load_public(public: bytes) -> _Ring:
    ring = _Ring(public)
    if ring.context.is_private():
        raise ProtocolError("these CKKS keys hold the secret key, which must not leave the arbiter")
    return ring


def _row_bits(n_rows: int) -> int:
    return (n_rows - 1).bit_length()


def _scale_bits(n_rows: int) -> tuple[int, int]:
    """Return log2 of the scales of A and B.

    Their product leaves one bit between the largest total and the modulus. Encoding B errs by
    1 / scale of B, drowning by 1 / scale of A: shared out so, both are the same fraction of n.
    """
    bits = _row_bits(n_rows)
    of_b = 31 - bits // 2
    return sum(COEFF_MOD_BIT_SIZES[:2]) - 2 - bits - of_b, of_b


def _checked_matrix(matrix: ArrayLike, name: str, party: str | None) -> Array:
    array = _checks.real_array(matrix, name, party)
    if array.ndim != 2 or not len(array):
        raise DataError(
            f"{_checks.label(name, party)} must be a matrix of at least one row, got shape "
            f"{array.shape}"
        )
    values = array.astype(np.float64, copy=False)
    if not np.isfinite(values).all():
        _checks.raise_out_of_range(values, math.inf, name, party, "")
    for index, column in enumerate(values.T):
        # Squares of what float64 can just hold overflow to infinity, which is above the limit.
        with np.errstate(over="ignore"):
            rms = float(np.sqrt(np.mean(np.square(column))))
        if rms > RMS_LIMIT:
            up_to = _checks.power_above(rms)
            raise FixedPointOverflowError(
                f"column {index} of {_checks.label(name, party)} has a root mean square of up to "
                f"{up_to:.6g} (a power of two) over {len(values)} rows, the limit for encrypted "
                f"products is {RMS_LIMIT:g}; standardise the column, or divide it by "
                f"{up_to / RMS_LIMIT:.6g} or more"
            )
    return values


def _padded(column: Array, start: int) -> list[float]:
    values: list[float] = column[start : start + SLOTS].tolist()
    return values + [0.0] * (SLOTS - len(values))


def _drowning(ring: _Ring, n_rows: int) -> Any:
    """Return a fresh encryption of the random integer that drowns the noise of a product."""
    of_a, of_b = _scale_bits(n_rows)
    # The noise of A's blocks is weighted with B, which has at most this norm as polynomials.
    norm = RMS_LIMIT * math.sqrt(2.0 ** _row_bits(n_rows) / SLOTS) * 2.0**of_b
    width = math.ceil(_NOISE_TAIL * _NOISE_STD * norm) << HIDING_BITS
    high, low = divmod(secrets.randbelow(width) - width // 2, 2**_LOW_BITS)
    # In two halves, because the encoder takes floats and all digits count.
    unit, scale = 2.0 ** -(of_a + of_b), 2.0 ** (of_a + of_b)
    ciphertext = ring.api.Ciphertext()
    ring.encryptor.encrypt(ring.encode(high * 2.0**_LOW_BITS * unit, scale), ciphertext)
    ring.evaluator.add_plain_inplace(ciphertext, ring.encode(low * unit, scale))
    return ciphertext


def _constant_term(ring: _Ring, ciphertext: Any, n_rows: int) -> bytes:
    """Return what opens the constant coefficient alone, modulo the first prime."""
    # What is divided out lies far below the drowning; it halves the size.
    ring.evaluator.rescale_to_next_inplace(ciphertext)
    size, prime = POLY_MODULUS_DEGREE, ring.primes[0]
    words = np.fromiter((ciphertext[i] for i in range(2 * size)), dtype="<u8", count=2 * size)
    # Polynomials come as values at all roots, of which the constant coefficient is the mean.
    constant = sum(words[:size].tolist()) * pow(size, -1, prime) % prime
    return (
        _HEADER.pack(ring.key_name, n_rows) + struct.pack("<Q", constant) + words[size:].tobytes()
    )
