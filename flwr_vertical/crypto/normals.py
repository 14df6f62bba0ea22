"""Standard normal numbers that nobody without the seed can tell: from a cipher's key stream."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy.special import ndtri

from flwr_vertical.arrays import Array, Ring

_CHUNK = 1 << 12


class SecretNormals:
    """Standard normal numbers from the key stream of a seed (ChaCha20), in order."""

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
        self._left = np.zeros(0)

    def integers(self, count: int) -> Ring:
        """Return `count` uniform integers of 64 bits."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def draw(self, count: int) -> Array:
        """Return the next `count` numbers."""
        if count > len(self._left):
            bits = self.integers(max(_CHUNK, count)) >> np.uint64(11)
            fresh = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-53)
            self._left = np.concatenate([self._left, fresh])
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn
