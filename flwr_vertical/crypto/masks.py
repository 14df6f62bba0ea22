"""Pairwise one-time masks: each party's term looks uniform, and the masks cancel in the sum.

Every two parties agree on a key by X25519; both expand it to the same stream of ring elements,
which the party with the lower name adds and the other one subtracts. So the sum over **all**
parties is that of the plain terms modulo 2^w, and whoever lacks one of a party's pair keys sees
uniform numbers in its term. Follows Bonawitz et al., *Practical Secure Aggregation for
Privacy-Preserving Machine Learning* (CCS 2017), section 4.0.1 (masking with one-time pads),
without its recovery from drop-outs: a vertical sum is meaningless without all its parties.

Of more than 65 parties, each masks with 64 others: those next to it on a circle on which all stand
in an order that their keys draw (Bell, Bonawitz, Gascon, Lepoint and Raykova, *Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead*, CCS 2020, section 3.2). Cost then grows with the
number of parties, not its square. Whoever wants a party's term needs what all 64 know. If a third
of all parties tell the server theirs, these 64 are among them with a chance of some 3^-64.

The parties get each other's public keys through the server, so secrecy holds against an
honest-but-curious server; one that swaps keys could open the terms, unless the parties have signed
their keys (`identity`). One party alone has nobody to hide behind and sends its values as they are;
of two, each can subtract its own term from the sum.

Where the stream of a sum begins is drawn from the pair's secret, the sum's number and a digest of
what all parties were asked (`protocol.binding`).

The stream is AES-128 in counter mode (NIST SP 800-38A, section 6.5), which processors compute in
hardware: on an Intel Xeon of 2023 (AES-NI) 6.5 GB/s, against 5.0 GB/s of AES-256 and 4.0 GB/s of
ChaCha20. All nodes use it, whatever they have, since both ends of a pair need the same stream.
Its strength is that of X25519. The counter of each sum starts at a secret number, so that keys of
many pairs cannot be searched for at once (Bellare and Tackmann, *The Multi-User Security of
Authenticated Encryption: AES-GCM in TLS 1.3*, CRYPTO 2016).
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from flwr_vertical.crypto.pair_seeds import OwnKey
from flwr_vertical.crypto.permutation import secret_order
from flwr_vertical.errors import ProtocolError

MAX_STREAM_BYTES = 2**38
"""Bytes one sequence number may mask (256 GiB). Blocks of a stream never repeat, and so few stay
indistinguishable from random bytes (2^34 of them: an advantage of at most 2^-61)."""

PEERS = 64
"""Most other parties that a party has a mask with; even."""

_DOMAIN = b"flwr-vertical pairwise mask v3"
_CHUNK_BYTES = 1 << 18
_ZEROS = memoryview(bytes(_CHUNK_BYTES))

UnsignedArray = NDArray[np.unsignedinteger[Any]]


def generate_keypair() -> tuple[bytes, bytes]:
    """Return a fresh X25519 key pair as raw bytes: (private, public), 32 bytes each."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


class PairwiseMasker:
    """Masks one party's terms of the private sums of one run.

    Keys are raw X25519 keys of 32 bytes; `public_keys` has those of **all** parties in the sum,
    this one included, by name. The nonce of 16 bytes or more is random, public, the same at all
    parties and new for each run: it makes the masks of a run its own even where key pairs are kept.
    `last_sequence` is the highest sequence number already used under these keys and nonce. A party
    that is rebuilt between steps **must** restore it from this object's attribute of that name: a
    mask used twice reveals the difference of two terms.

    `ProtocolError` if a key is missing, malformed or of low order, names its owner; if the party's
    own public key is missing or is not that of `private_key`; if the nonce is too short.
    """

    def __init__(
        self,
        private_key: bytes,
        own_name: str,
        public_keys: Mapping[str, bytes],
        run_nonce: bytes,
        last_sequence: int = -1,
    ) -> None:
        if own_name not in public_keys:
            raise ProtocolError(
                f"party {own_name!r} is not among the parties with a public key: "
                f"{sorted(public_keys)}"
            )
        own = OwnKey(private_key, own_name, public_keys[own_name], run_nonce)
        self.own_name = own_name
        self.last_sequence = last_sequence
        # (does this party add?, the pair's secret), one per peer.
        self._pairs: list[tuple[bool, bytes]] = []
        self._encryptors: list[Any] = []
        for peer in _neighbours(own_name, public_keys, run_nonce):
            # 16 bytes are the key of the pair's stream, 16 draw where each of its parts begins.
            shared = own.agree(peer, public_keys[peer], _DOMAIN)
            self._pairs.append((own_name < peer, shared))
        self._stream = np.empty(_CHUNK_BYTES, dtype=np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encryptors": []}  # made again at first use

    def __repr__(self) -> str:
        return (
            f"PairwiseMasker(own_name={self.own_name!r}, n_peers={len(self._pairs)}, "
            f"last_sequence={self.last_sequence})"
        )

    def mask(self, arrays: Sequence[UnsignedArray], sequence: int, binding: bytes = b"") -> None:
        """Add this party's masks to `arrays`, C-contiguous and of any shapes, in place.

        The masks cancel modulo 2^(an array's width) if all parties call this once with the same
        sequence number and binding, and arrays of the same shapes and data types in the same order:
        the arrays take consecutive parts of one stream.

        The sequence number of this sum in the run, 0 to 2^64 - 1, is larger than any used before.
        It counts as used from here on, even if masking fails. `binding` is a digest of what all
        parties were asked for (`protocol.binding`): parties that were asked for different things
        draw masks that do not cancel.

        `ProtocolError` if the sequence number is not larger than the last one used, an array cannot
        be masked in place, or the arrays need more than 256 GiB of one stream. Nothing is masked
        then.
        """
        if not self.last_sequence < sequence < 2**64:
            raise ProtocolError(
                f"party {self.own_name!r} was asked to mask with sequence number {sequence}, but "
                f"its last was {self.last_sequence} and each must be larger (and below 2**64): "
                "a mask used twice reveals the difference of two terms; send the kept reply again"
            )
        for index, array in enumerate(arrays):
            if (
                array.dtype.kind != "u"
                or not array.dtype.isnative
                or not array.flags.c_contiguous
                or not array.flags.writeable
            ):
                raise ProtocolError(
                    f"array {index} to mask must be C-contiguous, writeable and of a native "
                    f"unsigned type, got {array.dtype}, contiguous={array.flags.c_contiguous}, "
                    f"writeable={array.flags.writeable}; encode it first"
                )
        n_bytes = sum(array.nbytes for array in arrays)
        if n_bytes > MAX_STREAM_BYTES:
            raise ProtocolError(
                f"one sequence number masks at most {MAX_STREAM_BYTES} bytes, got {n_bytes}; "
                "split the arrays over several sums"
            )
        self.last_sequence = sequence
        streams = self._streams(sequence, binding)
        out = memoryview(self._stream.data)
        for array in arrays:
            flat = array.reshape(-1)
            # All parties must read the stream alike, whatever their machine.
            stream = self._stream.view(flat.dtype.newbyteorder("<"))
            width = flat.itemsize
            for start in range(0, flat.size, _CHUNK_BYTES // width):
                chunk = flat[start : start + _CHUNK_BYTES // width]
                size, zeros = chunk.nbytes, _ZEROS[: chunk.nbytes]
                many = _CHUNK_BYTES // size  # peers of whom the streams are added up at once
                for combine, encryptors in streams:
                    for first in range(0, len(encryptors), many):
                        group = encryptors[first : first + many]
                        for k, encryptor in enumerate(group):
                            encryptor.update_into(zeros, out[k * size : (k + 1) * size])
                        made = stream[: len(group) * chunk.size].reshape(len(group), -1)
                        one = made[0] if len(group) == 1 else made.sum(axis=0, dtype=flat.dtype)
                        combine(chunk, one, out=chunk)

    def _streams(self, sequence: int, binding: bytes) -> list[tuple[np.ufunc, list[Any]]]:
        """Return, for each way in which masks are applied, the streams that make them."""
        if not self._encryptors:
            self._encryptors = [
                Cipher(algorithms.AES(secret[:16]), modes.CTR(bytes(16))).encryptor()
                for _, secret in self._pairs
            ]
        streams: dict[bool, list[Any]] = {True: [], False: []}
        number = sequence.to_bytes(8, "big")
        for (adds, secret), encryptor in zip(self._pairs, self._encryptors, strict=True):
            # 128 bits that only the two know: no stream runs into another one, but by a chance of
            # some 2^-90 for 2^34 blocks each.
            first = hashlib.blake2b(number + binding, key=secret[16:], digest_size=16).digest()
            encryptor.reset_nonce(first)
            streams[adds].append(encryptor)
        return [(np.add, streams[True]), (np.subtract, streams[False])]


def unmask_sum(arrays: Sequence[UnsignedArray]) -> UnsignedArray:
    """Return the sum of **all** parties' terms modulo 2^w, in which the masks have cancelled."""
    if not arrays:
        raise ProtocolError("a masked sum needs the terms of all parties, got none")
    first = arrays[0]
    if first.dtype.kind != "u":
        raise ProtocolError(f"masked terms are unsigned integers, got dtype {first.dtype}")
    for index, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise ProtocolError(
                f"masked term {index} has shape {array.shape} and dtype {array.dtype}, term 0 has "
                f"{first.shape} and {first.dtype}; all parties must send the same"
            )
    total = np.empty(first.shape, dtype=first.dtype)
    flat, terms = total.reshape(-1), [array.reshape(-1) for array in arrays]
    step = _CHUNK_BYTES // total.itemsize
    # By chunks, so that the running total stays in the cache over all parties.
    for start in range(0, flat.size, step):
        chunk = flat[start : start + step]
        chunk[:] = terms[0][start : start + step]
        for term in terms[1:]:
            np.add(chunk, term[start : start + step], out=chunk)
    return total


def _neighbours(own_name: str, public_keys: Mapping[str, bytes], run_nonce: bytes) -> list[str]:
    """Return the parties whose masks a party adds or subtracts: all others, or `PEERS` of many."""
    names = sorted(public_keys)
    if len(names) - 1 <= PEERS:
        return [name for name in names if name != own_name]
    circle = _circle(tuple(names), tuple(bytes(public_keys[name]) for name in names), run_nonce)
    here = circle.index(own_name)
    steps = range(1, PEERS // 2 + 1)
    return sorted(circle[(here + way * step) % len(circle)] for step in steps for way in (1, -1))


@lru_cache(maxsize=2)  # of simulated parties, all are in one process
def _circle(names: tuple[str, ...], keys: tuple[bytes, ...], run_nonce: bytes) -> list[str]:
    drawn = hashlib.blake2b(repr((names, keys, run_nonce)).encode(), digest_size=16).digest()
    stream = Cipher(algorithms.AES(drawn), modes.CTR(bytes(16))).encryptor()
    order = secret_order(len(names), lambda count: stream.update(bytes(count)))
    return [names[place] for place in order]
