"""What the server tells of its vectors (labels) beforehand, so that it cannot take others later."""

import hashlib

import numpy as np
import numpy.typing as npt

from flwr_vertical.errors import DataError
from flwr_vertical.server import Federation

_NONCE_BYTES = 32


class Commitment:
    """SHA-256 of the server's vectors with a nonce; one set of vectors in a run.

    The parties keep the digest and refuse products with vectors under another one. Whether it is
    that of the true labels an auditor can check, to whom the server gives nonce and labels.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.digest = self.nonce = b""

    def of(self, vectors: npt.NDArray[np.float64]) -> bytes:
        """Commit to vectors, or check that they are those committed to.

        Shapes: vectors (n_samples, n_vectors).
        """
        if not self.nonce:
            self.nonce = self._federation.random_bytes(_NONCE_BYTES)
        digest = digest_of(self.nonce, vectors)
        if self.digest and digest != self.digest:
            raise DataError(
                "the labels (vectors) differ from those that the server committed to in this run; "
                "the parties multiply with these alone. Start another run for other labels"
            )
        self.digest = digest
        return digest


def digest_of(nonce: bytes, vectors: npt.NDArray[np.float64]) -> bytes:
    """Return the digest that commits to vectors: for an auditor who has nonce and vectors.

    Shapes: vectors (n_samples, n_vectors).
    """
    content = np.ascontiguousarray(vectors, dtype="<f8")
    return hashlib.sha256(nonce + repr(content.shape).encode() + content.tobytes()).digest()


def checked_vectors(vectors: npt.NDArray[np.float64], n_samples: int) -> npt.NDArray[np.float64]:
    """Return vectors of the server as floats, if they have the right shape and are finite."""
    vectors = np.asarray(vectors, dtype=float)
    if vectors.ndim != 2 or len(vectors) != n_samples:
        raise DataError(f"vectors have shape {vectors.shape}, expected ({n_samples}, n_vectors)")
    if not np.isfinite(vectors).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(vectors))[0])
        raise DataError(
            f"vector {column} is {vectors[row, column]} in row {row}; products need finite values: "
            "put 0 where a label is missing, and the row into no group"
        )
    return vectors
