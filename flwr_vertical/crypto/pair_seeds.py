"""Seeds that two parties share and the server cannot know, and random signs drawn from them.

Two parties that hold different columns of the same samples draw one random sign matrix from their
seed; each sends its columns multiplied by it, which the server can multiply with each other but
not undo. Keys agree as for the masks (`masks`), with the same limit: secrecy holds against an
honest-but-curious server, or any server once the parties have signed their keys (`identity`).
"""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from flwr_vertical.crypto.masks import KEY_BYTES, MIN_NONCE_BYTES
from flwr_vertical.errors import ProtocolError

SEED_BYTES = 32
MAX_STREAM_BYTES = 2**38 - 64
"""Bytes that one seed gives: ChaCha20 counts 2^32 blocks of 64 bytes (256 GiB)."""

_DOMAIN = b"flwr-vertical pair seed v1"
_BLOCK_SIGNS = 1 << 20
_CIPHER_BLOCK = 64

_Number = TypeVar("_Number", np.int8, np.float32, np.float64)


def pair_seed(
    private: bytes,
    own_name: str,
    peer_name: str,
    own_public: bytes,
    peer_public: bytes,
    nonce: bytes,
    purpose: str,
) -> bytes:
    """Return the seed that this party and a peer share for one purpose of one run."""
    if own_name == peer_name:
        raise ProtocolError(f"a pair seed needs two parties, got {own_name!r} twice")
    if len(nonce) < MIN_NONCE_BYTES:
        raise ProtocolError(
            f"the run nonce must be at least {MIN_NONCE_BYTES} bytes, got {len(nonce)}"
        )
    for kind, name, raw in (
        ("private", own_name, private),
        ("public", own_name, own_public),
        ("public", peer_name, peer_public),
    ):
        if len(raw) != KEY_BYTES:
            raise ProtocolError(
                f"the {kind} key of party {name!r} must be {KEY_BYTES} bytes, got {len(raw)}"
            )
    key = X25519PrivateKey.from_private_bytes(private)
    # The seed is bound to both public keys: with a wrong one the parties would silently disagree.
    if key.public_key().public_bytes_raw() != bytes(own_public):
        raise ProtocolError(
            f"the public key announced for party {own_name!r} is not that of its private key: "
            "another run's key, or somebody answered in its name"
        )
    if bytes(peer_public) == bytes(own_public):
        raise ProtocolError(f"party {peer_name!r} announced this party's own public key as its own")
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(bytes(peer_public)))
    except ValueError as error:
        # The library refuses an all-zero secret (RFC 7748, section 6.1): the key is of low order.
        raise ProtocolError(
            f"the public key of party {peer_name!r} is of low order: anybody could compute the "
            "seeds shared with it; it must make a new key pair"
        ) from error
    ends = sorted(((own_name, bytes(own_public)), (peer_name, bytes(peer_public))))
    parts = [_DOMAIN, purpose.encode()]
    for name, public in ends:
        parts += [name.encode(), public]
    # Lengths make the encoding injective: no two different inputs give the same bytes.
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=nonce, info=info).derive(secret)


def packed_signs(
    seed: bytes, n_columns: int, size: int, first: int = 0
) -> Iterator[NDArray[np.uint8]]:
    """Yield columns ``first, ..., first + n_columns - 1`` of a seed's sign matrix as bits.

    Column ``i`` belongs to aligned sample ``i`` and takes the bytes from ``i * ceil(size / 8)`` of
    the ChaCha20 key stream, so that it is the same wherever a party starts and whatever rows it
    holds, on any machine.
    """
    if len(seed) != SEED_BYTES:
        raise ProtocolError(f"a seed must be {SEED_BYTES} bytes, got {len(seed)}")
    if n_columns < 0 or first < 0 or size < 1:
        raise ProtocolError(
            "a sign matrix needs n_columns >= 0, first >= 0 and size >= 1, "
            f"got {n_columns}, {first} and {size}"
        )
    width = -(-size // 8)
    if (first + n_columns) * width > MAX_STREAM_BYTES:
        raise ProtocolError(
            f"one seed gives at most {MAX_STREAM_BYTES} bytes of signs, got {first + n_columns} "
            f"columns of {width} bytes; use fewer rows of signs"
        )
    return _packed_blocks(seed, n_columns, width, first)


def unpack_signs(packed: NDArray[np.uint8], size: int, dtype: type[_Number]) -> NDArray[_Number]:
    """Turn bits into signs.

    Shapes: returns (n_block, size): +1 for a set bit, else -1.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    signs_of_byte = (2 * bits.astype(np.int8) - 1).astype(dtype)
    # Looking up eight signs at once is faster than unpacking and converting them.
    signs = np.take(signs_of_byte, packed, axis=0).reshape(len(packed), 8 * packed.shape[1])
    return signs[:, :size]


def random_signs(
    seed: bytes, n_columns: int, size: int, first: int = 0
) -> Iterator[NDArray[np.int8]]:
    """Yield columns ``first, ..., first + n_columns - 1`` of a seed's sign matrix.

    Parameters and errors are those of `packed_signs`, whose bits these are.

    Shapes: returns (n_block, size): +1 and -1; consecutive columns, one per row of the block;
    about 1 MiB.
    """
    return (
        unpack_signs(packed, size, np.int8) for packed in packed_signs(seed, n_columns, size, first)
    )


def _packed_blocks(
    seed: bytes, n_columns: int, width: int, first: int
) -> Iterator[NDArray[np.uint8]]:
    # RFC 8439: 32-bit block counter, then 96-bit nonce, which may be constant: each seed is used
    # for one stream.
    skipped, offset = divmod(first * width, _CIPHER_BLOCK)
    nonce = skipped.to_bytes(4, "little") + bytes(12)
    stream = Cipher(algorithms.ChaCha20(seed, nonce), None).encryptor()
    stream.update(bytes(offset))
    step = max(_BLOCK_SIGNS // (8 * width), 1)
    zeros = memoryview(bytes(step * width))
    for start in range(0, n_columns, step):
        block = np.empty((min(step, n_columns - start), width), dtype=np.uint8)
        stream.update_into(zeros[: block.nbytes], block.reshape(-1).data)
        yield block
