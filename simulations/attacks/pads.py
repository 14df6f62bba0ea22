"""Attack on one-time pads: numbers modulo 2^64 that were masked by the same stream twice."""

from itertools import combinations

import numpy as np
from scipy.stats import chisquare

from flwr_vertical.arrays import Ring
from simulations.attacks.vectors import Family, row_sets
from simulations.attacks.views import View

_MOST_PAIRS = 100
_UNIFORM = 1e-9  # a p-value below which numbers are not uniform


def reused_pads(view: View) -> list[Family]:
    """Return sums and differences modulo 2^64 of two arrays that are not uniform, as vectors.

    A stream that masked two contents leaves their difference, one that masks and unmasks their
    sum. A single array that is not uniform is not masked at all, and is returned as well.
    """
    by_shape: dict[tuple[int, ...], list[tuple[str, Ring]]] = {}
    for item in view.items:
        value = item.value
        if not item.ring or not isinstance(value, np.ndarray) or value.dtype != np.uint64:
            continue
        if value.ndim in (1, 2) and value.size:
            by_shape.setdefault(value.shape, []).append((item.name, value))
    found = []
    for arrays in by_shape.values():
        kept = _distinct(arrays)
        found += [vectors for name, a in kept for vectors in _vectors(view, name, a)]
        for (name, a), (other, b) in list(combinations(kept, 2))[-_MOST_PAIRS:]:
            for sign, mixed in (("-", a - b), ("+", a + b)):
                found += _vectors(view, f"{name} {sign} {other}", mixed)
    return found


def _distinct(arrays: list[tuple[str, Ring]]) -> list[tuple[str, Ring]]:
    seen: dict[bytes, tuple[str, Ring]] = {}
    for name, array in arrays:
        seen.setdefault(array.tobytes(), (name, array))
    return list(seen.values())


def _vectors(view: View, name: str, array: Ring) -> list[Family]:
    if is_uniform(array):
        return []
    signed = array.view(np.int64).astype(float)
    return [
        Family(
            f"not uniform: {name}",
            np.sort(rows),
            np.moveaxis(signed, axis, 0).reshape(len(rows), -1)[np.argsort(rows)],
        )
        for axis in range(array.ndim)
        for rows in row_sets(view)
        if len(rows) == array.shape[axis]
    ]


def is_uniform(array: Ring) -> bool:
    """Tell whether numbers modulo 2^64 pass for uniform, by the 16 classes of their top bits."""
    counts = np.bincount((array.ravel() >> np.uint64(60)).astype(np.int64), minlength=16)
    return bool(chisquare(counts).pvalue > _UNIFORM)
