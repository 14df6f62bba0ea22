"""Key streams of a group of parties: the same at all of them, unknown to the server, used once.

A stream that masked two different matrices would show their difference. So its key depends on what
it masks, through a keyed hash (a tag) that only the group can compute, as in encryption modes with
a synthetic initialisation vector (Rogaway and Shrimpton, 2006): the same content gets the same
stream, another content another one.
"""

import hashlib
import hmac
import math
from collections.abc import Iterable, Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flwr_vertical.arrays import Ring
from flwr_vertical.crypto.pair_seeds import framed
from flwr_vertical.errors import ProtocolError

SEED_BYTES = 32
TAG_BYTES = 16

_DOMAIN = b"flwr-vertical key stream v1"
_CHUNK_BYTES = 1 << 18
_BLOCK_BYTES = 16  # of the cipher
_ZEROS = memoryview(bytes(_CHUNK_BYTES))


def content_tag(seed: bytes, content: Ring) -> bytes:
    """Return the tag of a matrix: a hash keyed by the group seed, bytes of length 16."""
    return tag_of_blocks(seed, content.shape, [content])


def tag_of_blocks(seed: bytes, shape: tuple[int, ...], blocks: Iterable[Ring]) -> bytes:
    """Return the tag of a matrix that comes in blocks of rows; see `content_tag`."""
    _check(seed)
    mac = hmac.new(_derive(seed, "tag"), f"<u8 {tuple(shape)}".encode(), hashlib.sha256)
    for block in blocks:
        mac.update(np.ascontiguousarray(block, dtype="<u8").data)
    return mac.digest()[:TAG_BYTES]


def stream(seed: bytes, label: str, shape: tuple[int, ...], tag: bytes = b"") -> Ring:
    """Return the key stream of a label as numbers modulo 2^64."""
    return KeyStream(seed, label, shape, tag).rows(0, shape[0])


def cancelling_pad(
    seed: bytes, what: str, asked: str, names: Sequence[str], name: str, shape: tuple[int, ...]
) -> Ring:
    """Return a party's pad of those that cancel in the sum over all parties that are named.

    They do if all were asked for the same, as the digest `asked` tells; `what` is another one for
    each use of a seed.
    """
    place = names.index(name)
    neighbours = (place, (place + 1) % len(names))
    added, subtracted = (stream(seed, f"{what} {k} {asked}", shape) for k in neighbours)
    return added - subtracted


class KeyStream:
    """A key stream of which any rows can be had without the others."""

    def __init__(self, seed: bytes, label: str, shape: tuple[int, ...], tag: bytes = b"") -> None:
        _check(seed)
        self.shape = tuple(shape)
        key = _derive(seed, "stream", label.encode(), tag, repr(self.shape).encode())
        self._row_bytes = 8 * math.prod(self.shape[1:])
        self._aes = algorithms.AES(key)
        self._cipher = Cipher(self._aes, modes.CTR(bytes(_BLOCK_BYTES))).encryptor()

    def rows(self, start: int, stop: int) -> Ring:
        """Return rows of the stream, (stop - start, ...)."""
        out = np.empty((stop - start, *self.shape[1:]), dtype="<u8")
        # Counter mode: the bytes before are passed over by starting at a later counter.
        counter, skip = divmod(start * self._row_bytes, _BLOCK_BYTES)
        self._cipher.reset_nonce(counter.to_bytes(_BLOCK_BYTES, "big"))
        self._cipher.update(bytes(skip))
        if out.nbytes:
            view = memoryview(out.reshape(-1).view(np.uint8).data)
            for at in range(0, len(view), _CHUNK_BYTES):
                part = view[at : at + _CHUNK_BYTES]
                self._cipher.update_into(_ZEROS[: len(part)], part)
        return out.astype(np.uint64, copy=False)

    def rows_at(self, rows: npt.NDArray[np.integer]) -> Ring:
        """Return some rows of the stream, which need not be neighbours.

        Counter mode is the cipher of one counter after the other (NIST SP 800-38A, 6.5), so those
        of any rows go through it in one call.

        Shapes: rows (n_rows,); returns (n_rows, ...).
        """
        first, skip = np.divmod(np.asarray(rows, dtype=np.int64) * self._row_bytes, _BLOCK_BYTES)
        n_blocks = -(-(self._row_bytes + int(skip.max(initial=0))) // _BLOCK_BYTES)
        content = np.zeros((len(first) * n_blocks + 1, 2), dtype=">u8")  # the last one is room
        content[:-1, 1] = (first[:, None] + np.arange(n_blocks)).reshape(-1)
        view = memoryview(content.reshape(-1).view(np.uint8).data)
        Cipher(self._aes, modes.ECB()).encryptor().update_into(view[:-_BLOCK_BYTES], view)
        words = content[:-1].view("<u8").reshape(len(first), 2 * n_blocks)
        width = self._row_bytes // 8
        if skip.any():
            words = np.where(skip[:, None] > 0, words[:, 1 : width + 1], words[:, :width])
        found = words[:, :width].reshape(len(first), *self.shape[1:])
        return found.astype(np.uint64, copy=False)

    def mask(self, blocks: Iterable[Ring], start: int = 0) -> Ring:
        """Mask blocks (n_rows, ...) of a matrix from row `start` on; bytes that need no copy."""
        buffer, at = BytesIO(), start
        for block in blocks:
            buffer.write(np.ascontiguousarray(block + self.rows(at, at + len(block))).data)
            at += len(block)
        return np.ndarray((at - start, *self.shape[1:]), np.uint64, buffer.getvalue())


def _derive(seed: bytes, *parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    info = framed(_DOMAIN, *encoded)
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(seed)


def _check(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise ProtocolError(f"a seed must be {SEED_BYTES} bytes, got {len(seed)}")
