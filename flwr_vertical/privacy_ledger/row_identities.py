"""Who the own rows are, over runs and versions of a table, without their IDs."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from flwr_vertical.arrays import Integers, Ring
from flwr_vertical.errors import DataError
from flwr_vertical.tables.ids import count_equal, hashes_of

Keys = Ring
Contents = npt.NDArray[np.uint32]

SECRET_LENGTH = 16
"""Characters of the secret that hashes of IDs are keyed with."""

_BLOCK = 1 << 15
"""Rows that are hashed at a time: a block of some 50 columns fits a cache, a table does not."""


@dataclass(frozen=True)
class OwnRows:
    """The rows of a table as the ledger knows them."""

    keys: Keys  # (n_rows,): keyed hash (SipHash) of each ID, as text
    # (n_rows,): digest of each row's cells; without, changes of cells are not noticed
    contents: Contents | None = None

    @classmethod
    def of(
        cls, ids: "pd.Index", secret: str, frame: pd.DataFrame | None = None, who: str = ""
    ) -> "OwnRows":
        """Hash IDs and rows."""
        keys = hashes_of(ids, secret)
        if twice := count_equal(keys):
            raise DataError(
                f"{who}: {twice:,} sample IDs come twice, so its "
                "privacy ledger cannot tell its rows apart; make them unique"
            )
        if frame is None:
            return cls(keys)
        return cls(keys, _digests(frame))

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def digest(self) -> bytes:
        """Digest of all rows in their order."""
        found = hashlib.blake2b(self.keys.tobytes(), digest_size=32)
        if self.contents is not None:
            found.update(self.contents.tobytes())
        return found.digest()


def _digests(frame: pd.DataFrame) -> Contents:
    """Return a digest of each row's cells, whatever the order of the columns."""
    names = sorted(frame.columns, key=str)

    def of_block(start: int) -> Contents:
        rows = frame.iloc[start : start + _BLOCK][names]
        cells = pd.util.hash_pandas_object(rows, index=False).to_numpy()
        return (cells >> np.uint64(32)).astype(np.uint32)

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # arithmetic of NumPy, without the lock
        blocks = [*threads.map(of_block, range(0, len(frame), _BLOCK))]
    return np.concatenate([np.zeros(0, dtype=np.uint32), *blocks])


def secrets_of(keys: Keys, secret: str) -> tuple[Keys, bytes]:
    """Return a pseudorandom number of each row that only the ledger's secret gives.

    Shapes: keys (n_rows,): the rows; returns (n_rows,): AES-128 of each key, under a key of its
    own.
    """
    derived = hashlib.blake2b(b"row secrets", key=secret.encode(), digest_size=16).digest()
    cipher = Cipher(algorithms.AES(derived), modes.ECB()).encryptor()  # one block a row, all differ
    found = np.empty(len(keys), dtype=np.uint64)
    for start in range(0, len(keys), _BLOCK):
        rows = slice(start, start + _BLOCK)
        blocks = np.zeros((len(keys[rows]), 2), dtype="<u8")
        blocks[:, 0] = keys[rows]
        found[rows] = np.frombuffer(cipher.update(blocks.tobytes()), dtype="<u8")[::2]
    name = hashlib.blake2b(np.sort(found).tobytes(), key=secret.encode(), digest_size=16).digest()
    return found, name


def are_first(known: Keys, keys: Keys) -> bool:
    """Tell whether the ledger has these rows, in this order, before all others: the usual case."""
    return len(keys) <= len(known) and np.array_equal(known[: len(keys)], keys)


def places(known: Keys, keys: Keys) -> Integers:
    """Return where (n_rows,) keys are among the (n_known,) that the ledger has, -1 for none."""
    if are_first(known, keys):
        return np.arange(len(keys), dtype=np.int64)
    if not len(known):
        return np.full(len(keys), -1, dtype=np.int64)
    order, own = np.argsort(known), np.argsort(keys)
    ordered = known[order]
    at = np.minimum(np.searchsorted(ordered, keys[own]), len(known) - 1)
    out = np.empty(len(keys), dtype=np.int64)
    out[own] = np.where(ordered[at] == keys[own], order[at], -1)
    return out
