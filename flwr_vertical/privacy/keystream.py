"""Random bits for privacy noise: a cryptographic key stream, never a simulation generator.

NumPy's generators can be run backwards from their output, so noise drawn from them could be
removed again. Here every bit is AES-128 in counter mode under a fresh key of the operating system;
with hardware AES a core makes some ten gigabytes a second.
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from flwr_vertical.arrays import Integers, Ring

KEY_BYTES = 16
_CHUNK_BYTES = 1 << 18
_ZEROS = memoryview(bytes(_CHUNK_BYTES))

# Process-wide, since parties of a local simulation run in threads of their own.
_seeds: list[int] = []


class Keystream:
    """A stream of random bits under a key of 16 bytes, by default a fresh one of the system."""

    def __init__(self, key: bytes | None = None) -> None:
        key = secrets.token_bytes(KEY_BYTES) if key is None else key
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, out: Ring) -> Ring:
        """Fill a C-contiguous array with random words and return it."""
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        for start in range(0, len(view), _CHUNK_BYTES):
            part = view[start : start + _CHUNK_BYTES]
            self._stream.update_into(_ZEROS[: len(part)], part)
        return out

    def below(self, bound: int) -> int:
        """Return a whole number, uniform on 0, ..., bound - 1 (exactly, by rejection)."""
        n_bytes = (bound.bit_length() + 7) // 8
        excess = 8 * n_bytes - (bound - 1).bit_length()
        while True:
            value = int.from_bytes(self._stream.update(bytes(n_bytes)), "little") >> excess
            if value < bound:
                return value

    def shuffled(self, count: int) -> Integers:
        """Return a random order of 0, ..., count - 1, array of shape (count,)."""
        # Equal 64-bit keys, which the order of rows would then decide, have chance count^2 / 2^65.
        return np.argsort(self.words(np.empty(count, dtype=np.uint64)), kind="stable")


def fresh_keystream(label: str, key: bytes | None = None) -> Keystream:
    """Return the key stream for one release of noise.

    `label` says who draws and for what: it tells streams apart inside `seeded_noise`, and has no
    say outside, where `key` is used, 16 secret random bytes (default: fresh ones).
    """
    if _seeds:
        text = f"{_seeds[-1]} {label}".encode()
        return Keystream(hashlib.blake2b(text, digest_size=KEY_BYTES).digest())
    return Keystream(key)


def noise_is_seeded() -> bool:
    """Whether `seeded_noise` is in force in this process, so that nothing is protected."""
    return bool(_seeds)


@contextmanager
def seeded_noise(seed: int) -> Iterator[None]:
    """Make privacy noise repeatable in this process: for tests and studies on public data only.

    Whoever knows the seed can take the noise away, so the results are **not private**, and their
    privacy statement says so. No run config and no constructor can switch it on.
    """
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()
