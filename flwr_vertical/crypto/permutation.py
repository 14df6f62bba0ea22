"""Secret permutations."""

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np


def secret_order(count: int, random: Callable[[int], bytes] = secrets.token_bytes) -> Any:
    """Draw a permutation by the system's generator, array of shape (count,), int64."""
    keys = np.frombuffer(random(16 * count), dtype=np.uint64).reshape(count, 2)
    return np.lexsort((keys[:, 1], keys[:, 0])).astype(np.int64)
