"""Key streams of a group of parties: the same at all of them, unknown to the server, used once.

A stream that masked two different matrices would show their difference. So its key depends on what
it masks, through a keyed hash (a tag) that only the group can compute, as in encryption modes with
a synthetic initialisation vector (Rogaway and Shrimpton, 2006): the same content gets the same
stream, another content another one.
"""

import hashlib
import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.ring import Ring

SEED_BYTES = 32
TAG_BYTES = 16

_DOMAIN = b"flwr-vertical key stream v1"
_CHUNK_BYTES = 1 << 18
_ZEROS = memoryview(bytes(_CHUNK_BYTES))


def content_tag(seed: bytes, content: Ring) -> bytes:
    """Return the tag of a matrix: a hash keyed by the group seed, bytes of length 16.

    Parameters
    ----------
    seed : bytes of length 32
        The group seed.
    content : numpy.ndarray of uint64, C-contiguous
        What is to be masked.
    """
    _check(seed)
    head = f"{content.dtype.str} {content.shape}".encode()
    mac = hmac.new(_derive(seed, "tag"), head, hashlib.sha256)
    mac.update(np.ascontiguousarray(content).data)
    return mac.digest()[:TAG_BYTES]


def stream(seed: bytes, label: str, shape: tuple[int, ...], tag: bytes = b"") -> Ring:
    """Return the key stream of a label as numbers modulo 2^64.

    Parameters
    ----------
    seed : bytes of length 32
        Shared by those who need the stream.
    label : str
        What the stream is for: the run, the owner, the purpose, the attempt. Another label gives
        an unrelated stream.
    shape : tuple of int
        Of the array.
    tag : bytes
        Of the content that is masked, where it is (`content_tag`).

    Returns
    -------
    numpy.ndarray of that shape, uint64
    """
    _check(seed)
    out = np.empty(shape, dtype="<u8")
    key = _derive(seed, "stream", label.encode(), tag, repr(tuple(shape)).encode())
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    if out.nbytes:
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        for start in range(0, len(view), _CHUNK_BYTES):
            part = view[start : start + _CHUNK_BYTES]
            cipher.update_into(_ZEROS[: len(part)], part)
    return out.astype(np.uint64, copy=False)


def _derive(seed: bytes, *parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in (*parts,)]
    # Lengths make the encoding injective: no two different inputs give the same bytes.
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (_DOMAIN, *encoded))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(seed)


def _check(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise ProtocolError(f"a seed must be {SEED_BYTES} bytes, got {len(seed)}")
