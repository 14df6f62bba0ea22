"""A pseudorandom function of many short keys, evaluated obliviously by an extension of transfers.

Kolesnikov, Kumaresan, Rosulek and Trieu, *Efficient Batched Oblivious PRF with Applications to
Private Set Intersection* (CCS 2016). The receiver puts each of its IDs into one of `n_bins` bins
by cuckoo hashing and learns the function of that bin at that ID. The key holder can evaluate the
function of every bin anywhere, and does not learn what is in the bins.

The paper's symbols, and their names in this file:

* C, a pseudorandom code of 448 bits, BLAKE2b of the ID (`codes`, which also gives an ID's bins);
* s, r: the holder's choices in the base transfers, an ID;
* t_0, t_1: streams of the receiver's two seeds of a base transfer, AES-128 in counter mode; row j
  of all transfers belongs to bin j;
* the receiver sends t_0 + t_1 + C(r) (`extend`), and its value is H(j, t_0);
* the holder has q = t_0 + C(r) s, and its value at any y is H(j, q + C(y) s) (`Holder.tags`).

Sums and products are those of bits. 448 bits keep the code words of 2^20 IDs, each against those in
its three bins, 128 bits apart but for a chance of 2^-40. Semi-honest, with seeds and messages that
their owners sign or seal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from flwr_vertical.arrays import Bytes, Flags, Integers, Ring
from flwr_vertical.crypto._numbers import id_hasher
from flwr_vertical.errors import ProtocolError

N_TRANSFERS = 448
ROW_BYTES = N_TRANSFERS // 8
TAG_BYTES = 16
N_HASHES = 3

_BLOCK = 1 << 16  # bins whose bits are turned at once: 3.5 MiB
_MOVES = 5_000

Bins = Integers


def n_bins(count: int) -> int:
    """Return how many bins so many IDs need.

    1.27 an ID (Pinkas, Schneider and Zohner, 2018), and 33 more: in small tables four IDs would
    have the same three bins more often than once in 2^25.
    """
    return N_HASHES * (-(-(127 * count + 3_300) // (100 * N_HASHES)))


def codes(ids: Sequence[bytes], context: bytes, secret: bytes | None = None) -> tuple[Bytes, Ring]:
    """Hash IDs to code words (n, 56) and numbers (n,) of which `bins_of` makes bins."""
    hasher = id_hasher(b"fv-kkrt-code-v1", context, secret, ROW_BYTES + 8)
    rows = np.empty((len(ids), ROW_BYTES + 8), dtype=np.uint8)
    for start in range(0, len(ids), _BLOCK):
        part = slice(start, start + _BLOCK)
        rows[part] = _hash_each(hasher, ids[part], ROW_BYTES + 8)
    return rows[:, :ROW_BYTES], np.ascontiguousarray(rows[:, ROW_BYTES:]).view("<u8")[:, 0]


def bins_of(numbers: Ring, bins: int) -> Bins:
    """Return the three bins of each ID, one in each third of all; (n, 3)."""
    third = np.uint64(bins // N_HASHES)
    found = np.empty((len(numbers), N_HASHES), dtype=np.int64)
    for k in range(N_HASHES):
        # Splitmix64 (Steele, Lea and Flood, 2014): the k-th output from the ID's number on.
        mixed = numbers + np.uint64((k + 1) * 0x9E3779B97F4A7C15 % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        within = ((mixed >> np.uint64(32)) * third) >> np.uint64(32)
        found[:, k] = within.astype(np.int64) + k * int(third)
    return found


def place(candidates: Bins, bins: int) -> Bins:
    """Give each ID a bin to itself, (n,), by cuckoo hashing; `ProtocolError` once in 2^20 runs."""
    count = len(candidates)
    holder = np.full(bins, -1, dtype=np.int64)
    choice = np.zeros(count, dtype=np.int64)
    pending = np.arange(count)
    random = np.random.default_rng(0)  # only spreads the moves, nobody sees them
    for _ in range(_MOVES):
        if not len(pending):
            return np.take_along_axis(candidates, choice[:, None], axis=1)[:, 0]
        wanted = candidates[pending, choice[pending]]
        before = holder[wanted]
        holder[wanted] = pending  # of several that want a bin one gets it
        won = holder[wanted] == pending
        driven_out = before[won]
        pending = np.concatenate([pending[~won], driven_out[driven_out >= 0]])
        choice[pending] += random.integers(1, N_HASHES, len(pending))
        choice[pending] %= N_HASHES
    raise ProtocolError("sample IDs found no place by cuckoo hashing, a rare accident; run again")


def extend(
    seeds: Sequence[tuple[bytes, bytes]], code: Bytes, places: Bins, bins: int, context: bytes
) -> tuple[Bytes, Bytes]:
    """Make the receiver's message to the key holder, and its values.

    Shapes: seeds: both seeds of each of the 448 base transfers; code (n, 56): code words of its
    IDs; places (n,): the bin of each; returns (bins, 56), uint8: empty bins have the code word 0,
    which the streams hide like others; returns (n, 16), uint8: the function of each ID's bin at
    that ID.
    """
    message = np.zeros((bins, ROW_BYTES), dtype=np.uint8)
    message[places] = code
    own = np.empty((bins, ROW_BYTES), dtype=np.uint8)
    first, second = (_rows([pair[side] for pair in seeds], bins) for side in (0, 1))
    for start, left, right in zip(range(0, bins, _BLOCK), first, second, strict=True):
        own[start : start + _BLOCK] = left
        message[start : start + _BLOCK] ^= left ^ right
    return message, _tags(own, places, context)


@dataclass(frozen=True)
class Holder:
    """Who has the keys of all bins.

    Shapes: choices (448,): what it chose in the base transfers; rows (bins, 56), uint8: keys.
    """

    choices: Flags
    rows: Bytes

    @classmethod
    def of(cls, seeds: Sequence[bytes], choices: Flags, message: Bytes) -> "Holder":
        """Work out the keys from the seeds that it chose and the receiver's message, (bins, 56)."""
        rows = message & _packed(choices)
        for start, block in zip(range(0, len(rows), _BLOCK), _rows(seeds, len(rows)), strict=True):
            rows[start : start + _BLOCK] ^= block
        return cls(choices, rows)

    def tags(self, code: Bytes, bins: Bins, context: bytes) -> Bytes:
        """Evaluate the functions of bins at IDs.

        Shapes: code (n, 56): code words of the IDs; bins (n, 3): bins of each; returns (n, 3, 16),
        uint8: of each ID in the order of the values, which does not tell the bins.
        """
        found = np.empty((len(code), N_HASHES, TAG_BYTES), dtype=np.uint8)
        packed = _packed(self.choices)
        for start in range(0, len(code), _BLOCK):
            part = slice(start, start + _BLOCK)
            masked = code[part] & packed
            values = np.stack(
                [
                    _tags(self.rows, of, context, masked)
                    for of in np.ascontiguousarray(bins[part].T)
                ],
                axis=1,
            )
            first = np.ascontiguousarray(values[:, :, :8]).view("<u8")[:, :, 0]
            order = np.argsort(first, axis=1)[:, :, None]
            found[part] = np.take_along_axis(values, order, axis=1)
        return found


def _tags(rows: Bytes, bins: Bins, context: bytes, masked: Bytes | None = None) -> Bytes:
    """Hash the rows of bins, with bits flipped by `masked`, to values; (n, 16)."""
    hasher = id_hasher(b"fv-kkrt-tag-v1", context, None, TAG_BYTES)
    tags = np.empty((len(bins), TAG_BYTES), dtype=np.uint8)
    for start in range(0, len(bins), _BLOCK):
        part = slice(start, start + _BLOCK)
        held = rows[bins[part]]
        if masked is not None:
            held ^= masked[part]
        data = np.concatenate([bins[part].astype("<i8")[:, None].view(np.uint8), held], axis=1)
        width, flat = data.shape[1], data.tobytes()
        split = [flat[k : k + width] for k in range(0, len(flat), width)]
        tags[part] = _hash_each(hasher, split, TAG_BYTES)
    return tags


def _hash_each(hasher: Callable[[bytes], bytes], values: Sequence[bytes], width: int) -> Bytes:
    return np.frombuffer(b"".join(map(hasher, values)), dtype=np.uint8).reshape(-1, width)


def _packed(choices: Flags) -> Bytes:
    return np.packbits(choices, bitorder="little")


def _rows(seeds: Sequence[bytes], bins: int) -> Iterator[Bytes]:
    """Yield the streams of all seeds in blocks of rows, (<= 65,536, 56), one bit a seed and bin."""
    streams = [
        Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update for seed in seeds
    ]
    zeros = bytes(_BLOCK // 8)
    for start in range(0, bins, _BLOCK):
        size = min(_BLOCK, bins - start)
        block = zeros[: -(-size // 8)]
        columns = np.frombuffer(b"".join([stream(block) for stream in streams]), dtype=np.uint8)
        yield _transposed(columns.reshape(len(seeds), -1))[:size]


def _transposed(columns: Bytes) -> Bytes:
    """Turn a matrix of bits.

    Shapes: columns (448, n / 8): a transfer a row, its bits in bytes, lowest first; returns
    (n, 56): a bin a row.
    """
    n_bytes = columns.shape[1]
    squares = columns.reshape(ROW_BYTES, 8, n_bytes).transpose(2, 0, 1)
    words = np.ascontiguousarray(squares).view("<u8")[:, :, 0]
    # 8 x 8 bits in a word (Warren, Hacker's Delight, section 7-3).
    for shift, mask in (
        (7, 0x00AA00AA00AA00AA),
        (14, 0x0000CCCC0000CCCC),
        (28, 0x00000000F0F0F0F0),
    ):
        swapped = (words ^ (words >> np.uint64(shift))) & np.uint64(mask)
        words ^= swapped ^ (swapped << np.uint64(shift))
    turned = words.view(np.uint8).reshape(n_bytes, ROW_BYTES, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(turned).reshape(8 * n_bytes, ROW_BYTES)
