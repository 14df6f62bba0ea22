"""Draws that all nodes make alike, made once where several nodes are in one process.

Every party needs the same noise of h, and so does the server. On machines of their own each draws
it; in a simulation all would, one after the other. Draws follow from the seed, so that it makes no
difference who drew them.
"""

import threading
from collections import OrderedDict

import torch
from torch import Tensor

from strategies.false_vfl.gaussian import draw_normals

KEPT_BYTES = 1 << 25
"""Of draws kept at most (32 MiB): the epochs of one round of the second stage, at Isolet's size."""

_Key = tuple[int, str, tuple[int, ...], torch.dtype]


class SharedDraws:
    """The last draws of a process; use the one of this process, `shared_draws`."""

    def __init__(self, n_bytes: int = KEPT_BYTES) -> None:
        self._n_bytes, self._used = n_bytes, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, Tensor] = OrderedDict()

    def normals(
        self, seed: int, purpose: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return what `draw_normals` does; nobody may change it."""
        key = seed, purpose, shape, dtype
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        drawn = draw_normals(*key)
        with self._lock:
            if key not in self._kept and drawn.nbytes <= self._n_bytes:
                self._kept[key] = drawn
                self._used += drawn.nbytes
                while self._used > self._n_bytes:
                    self._used -= self._kept.popitem(last=False)[1].nbytes
        return drawn


shared_draws = SharedDraws()
