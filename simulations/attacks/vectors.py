"""Every number of a view that goes with a sample, as vectors over the samples."""

from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Indices
from simulations.attacks.recording import PRODUCTS
from simulations.attacks.views import Item, View

_SETS_OF_A_SIZE = 3  # an array's rows may be any of so many sets of its length


@dataclass(frozen=True)
class Family:
    """Vectors of one name and step over the same samples, of all rounds."""

    key: str  # Where they come from
    rows: Indices  # (n_rows,): their samples, ascending
    values: Array  # (n_rows, n_vectors): the numbers


def row_sets(view: View) -> list[Indices]:
    """Return the sets of samples that everybody in the run knows, the largest first.

    All, those of a party, of a pattern of missing blocks, that all parties or one alone has; each
    with and without labels; and every list of positions in a message, in its order.
    """
    held = ~view.mask
    bases = [np.ones(view.n_samples, dtype=bool), held.all(axis=1), *held.T]
    kinds = np.unique(view.mask, axis=0)
    bases += [(view.mask == kind).all(axis=1) for kind in kinds]
    found: dict[bytes, Indices] = {}

    def add(rows: Indices) -> None:
        if len(rows) >= least_rows(view.n_samples):
            found.setdefault(rows.tobytes(), rows)

    for base in bases:
        for labelled in (None, True, False):
            chosen = base if labelled is None else base & (view.labelled == labelled)
            add(np.flatnonzero(chosen))
    for rows in (*view.positions.values(), *_positions_told(view)):
        add(np.asarray(rows, dtype=np.int64))
    return sorted(found.values(), key=len, reverse=True)


def least_rows(n_samples: int) -> int:
    """Return the fewest samples of a set that vectors are sought over: fewer look like columns."""
    return max(8, n_samples // 20)


def families(view: View, rings: bool = False) -> list[Family]:
    """Return the vectors of a view."""
    by_size: dict[int, list[Indices]] = {}
    for rows in row_sets(view):
        by_size.setdefault(len(rows), []).append(rows)
    found: dict[tuple[str, bytes], tuple[Indices, list[Array]]] = {}
    batches = _Batches(view)
    for item in view.items:
        batches.follow(item)
        if item.ring is not rings or item.step == PRODUCTS or not _is_numbers(item):
            continue
        array = np.asarray(item.value)
        array = array.view(np.int64) if array.dtype == np.uint64 else array
        for axis in range(min(array.ndim, 2)):
            size = array.shape[axis]
            sets = {rows.tobytes(): rows for rows in batches.of(item, size)}
            for rows in by_size.get(size, [])[:_SETS_OF_A_SIZE]:
                sets.setdefault(rows.tobytes(), rows)
            for rows in sets.values():
                order = np.argsort(rows)
                columns = np.moveaxis(array, axis, 0).reshape(len(rows), -1)[order].astype(float)
                key = (f"{item.step}.{item.name} {item.way} axis {axis}", rows[order].tobytes())
                found.setdefault(key, (rows[order], []))[1].append(columns)
    return [
        Family(key[0], rows, kept)
        for key, (rows, columns) in found.items()
        if (kept := _varying(np.hstack(columns))).shape[1]
    ]


class _Batches:
    """Which samples the last message of each conversation was about: training names them."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._last: dict[str, Indices] = {}

    def follow(self, item: Item) -> None:
        """Note the samples that a message names."""
        rows = _rows_named(item, self._view.n_samples)
        if rows is not None:
            self._last[item.other] = rows

    def of(self, item: Item, size: int) -> list[Indices]:
        """Return the sets of that size which numbers of an item may be of, in their order."""
        conversations = [item.other] if item.other in self._last else self._last
        found = []
        for other in conversations:
            rows = self._last[other]
            # A party is told of those of the batch that it holds.
            party = other if other in self._view.parties else self._view.who
            found.append(rows)
            if party in self._view.parties:
                held = ~self._view.mask[:, self._view.parties.index(party)]
                found.append(rows[held[rows]])
        least = least_rows(self._view.n_samples)
        return [rows for rows in found if len(rows) == size and size >= least]


def restrict(family: Family, rows: Indices) -> Array | None:
    """Return a family's vectors over some samples; None if it lacks one of them."""
    at = np.searchsorted(family.rows, rows)
    if not 0 < len(rows) <= len(family.rows) or at.max() >= len(family.rows):
        return None
    if not np.array_equal(family.rows[at], rows):
        return None
    return family.values[at]


def basis(vectors: Array, tol: float = 1e-9) -> Array:
    """Return an orthonormal basis of the centred vectors' span.

    Shapes: vectors (n_rows, n_vectors): finite.
    """
    centred = vectors - vectors.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    centred = centred[:, length > 0] / length[length > 0]
    if not centred.shape[1]:
        return np.zeros((len(vectors), 0))
    if centred.shape[1] > 2 * len(centred):  # as many directions, in fewer numbers
        values, left = np.linalg.eigh(centred @ centred.T)
        return np.asarray(left[:, values > tol * values[-1]])
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(left[:, size > tol * size[0]])


def _is_numbers(item: Item) -> bool:
    value = item.value
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "fiub"


def _positions_told(view: View) -> list[Indices]:
    named = (_rows_named(item, view.n_samples) for item in view.items)
    return [rows for rows in named if rows is not None]


def _rows_named(item: Item, n_samples: int) -> Indices | None:
    """Return the samples that an item lists, in its order; None if it is no such list."""
    value = item.value
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        return None
    if item.ring or len(value) < 2 or value.max() >= n_samples or value.min() < 0:
        return None
    return value.astype(np.int64) if len(np.unique(value)) == len(value) else None


def _varying(columns: Array) -> Array:
    """Leave out vectors that are constant, not finite, or there already."""
    finite = np.isfinite(columns).all(axis=0)
    columns = columns[:, finite]
    columns = columns[:, np.ptp(columns, axis=0) > 0]
    _, first = np.unique(columns, axis=1, return_index=True)
    return columns[:, np.sort(first)]  # rounds stay in order
