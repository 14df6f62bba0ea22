"""What the server keeps so that parties recognise labels of earlier runs, without seeing them.

From the labels and a secret, which lies in a file of the server's own, the server computes numbers.
They are the same whenever the labels are, and without the secret they tell nothing of the labels.
"""

import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from flwr_vertical.errors import ConfigError
from flwr_vertical.protocol.disk import FILE_MODE
from flwr_vertical.whole_files import atomic_path

_BYTES = 32


class LabelMemory:
    """Numbers that follow from a secret and the labels of a run."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._secret = b""
        self.find_labels: Callable[[], bytes] = bytes
        self.nonce = b""  # Of commitments to labels in this run

    @property
    def lasts(self) -> bool:
        """Whether marks are the same in every run, and in one that is resumed."""
        return self._path is not None

    def mark(self, purpose: str, *parts: bytes) -> bytes:
        """Return 32 bytes of these labels for a purpose; with a file the same in every run."""
        labels = self.find_labels()
        if not labels:
            return b""
        if not self._secret:
            self._secret = secrets.token_bytes(_BYTES) if self._path is None else _load(self._path)
        found = hashlib.blake2b(key=self._secret, digest_size=_BYTES)
        for part in (purpose.encode(), labels, *parts):
            found.update(len(part).to_bytes(8, "big") + part)
        return found.digest()


def digest_of_labels(labels: "pd.Series[float]") -> bytes:
    """Return a digest of labels by sample ID, whatever their order."""
    ids = pd.util.hash_array(np.asarray(labels.index.astype(str), dtype=object), categorize=False)
    order = np.argsort(ids, kind="stable")
    values = labels.to_numpy(dtype="<f8")[order]
    return hashlib.sha256(ids[order].tobytes() + values.tobytes()).digest()


def _load(path: Path) -> bytes:
    """Read the secret; make it if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another run was first
            if not path.exists():
                with atomic_path(path, FILE_MODE, fresh=True) as temporary:
                    temporary.write_bytes(secrets.token_bytes(_BYTES))
        found = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the server's label secret {path} cannot be read or written ({error.strerror}); "
            "name another file, or leave 'label_secret' out: labels then count as new in each run"
        ) from error
    if len(found) != _BYTES:
        raise ConfigError(
            f"the server's label secret {path} has {len(found)} bytes, expected {_BYTES}; put back "
            "its copy, or remove it: labels then count as new once more"
        )
    return found
