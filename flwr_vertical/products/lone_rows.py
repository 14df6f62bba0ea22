"""Columns that come down to few rows: alone, less the columns before them, or several together.

From sums of products of columns the server has those of each column less what 1 and the columns
before it tell of it. Where a value far out is nearly all of a column, or two columns differ in a
row, the product of that with another party's column is a cell of it. So in every atom what is left
of a column lies, in effect, in as many rows as a rare level has at least. Of columns that are
functions of the same cells, the server knows how to combine them so that an outermost cell counts
most: such a row has at most half of the sum of squares, which is its leverage.

Statistical offices withhold totals that one contributor dominates: Cox, "Linear sensitivity
measures in statistical disclosure control", Journal of Statistical Planning and Inference 5 (1981).
The number of rows is that of Hill, "Diversity and evenness", Ecology 54 (1973), of order 2.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from flwr_vertical.arrays import Array, Flags, Indices
from flwr_vertical.products.columns import HeldColumns, ScaledRows
from flwr_vertical.products.rare_levels import LevelAtoms

FEWEST = 3
"""In so many rows what is left of a column lies at least; fewer where an owner tells of fewer."""

KnownSets = dict[bytes, list[tuple[Flags, Flags, Flags]]]
"""By a set of rows: columns that are told of, which of these may be, and which may be left out with
the others judged as before."""

_LEVERAGE = 0.5  # Of a row in columns of the same cells, at most
_ADDS = 1e-3  # To that of a row that had more in earlier runs, at most
_SHARE = 10  # Of a set of so many rows one is enough: its owner tells of so few
_ZERO = 1e-10  # What is left of a column, to its length, that products do not tell from 0
_CLEAR = 1e-3  # What is left of a column, to its length, that its square tells well enough
_ROWS = 65_536  # at a time
_AT_ONCE = 1 << 24  # numbers of a set of rows that are looked at column by column


def withhold_lone_rows(
    held: HeldColumns,
    own: Indices,
    withheld: Flags,
    atoms: LevelAtoms,
    needed: int,
    known: KnownSets,
) -> None:
    """Withhold columns in groups of rows where what is left of them lies in too few.

    `known`: what was found of sets of rows before, since means are asked for many times.

    Shapes: own (n_held,): which rows of the own table; withheld (n_groups, n_columns): changed.
    """
    if needed < 2:  # any column lies in one row
        return
    rows_of: dict[tuple[int, ...], tuple[bytes, Indices]] = {}
    together = [
        (made, before)
        for _, made, before in held.of_cells()
        if len(made) + before.values.shape[1] > 1
    ]

    def is_safe(found: list[int], j: int) -> bool:
        groups = sorted({int(g) for g in atoms.group[found] if g >= 0})
        hidden = withheld[groups].any(axis=0) if groups else withheld.all(axis=0)
        told: Flags = np.logical_not(hidden)
        if tuple(found) not in rows_of:
            chosen = np.isin(atoms.of_row, found)
            digest = hashlib.sha256(np.packbits(chosen).tobytes()).digest()
            rows_of[tuple(found)] = digest, np.flatnonzero(chosen)
        digest, rows = rows_of[tuple(found)]
        for every, safe, without in known.get(digest, ()):
            if not (told & ~every).any() and not (every & ~told & ~without).any():
                return bool(safe[j])
        enough = min(needed, len(rows) / _SHARE) - 1e-3
        columns = np.flatnonzero(told)
        beside: list[tuple[Indices, Array]] = []
        for made, before in together if enough > 1.0 / _LEVERAGE else ():
            among = np.intersect1d(made, columns)
            values = np.take(held.values[rows], among, axis=1)
            if before.values.shape[1]:
                values = before.around(own[rows], values)[1]
            beside.append((among, values))
        safe, without = np.ones(len(told), dtype=bool), np.zeros(len(told), dtype=bool)
        if len(rows) <= len(columns) + 1 or len(rows) * len(columns) > _AT_ONCE:
            safe[columns] = rows_behind(held.values, rows, columns) > enough
            for among, values in beside:
                safe[among] &= ~stand_out(values, len(rows), values.shape[1] - len(among))
        else:
            one_by_one(held.values, rows, columns, beside, enough, safe)
            without = ~safe
        known.setdefault(digest, []).append((told, safe, without))
        return bool(safe[j])

    while True:
        before = withheld.copy()
        for j in range(withheld.shape[1]):
            unsafe = atoms.unsafe_groups(lambda found, j=j: is_safe(found, j))  # type: ignore[misc]
            withheld[sorted(unsafe), j] = True
        if (withheld == before).all():
            return


def rows_behind(values: Array | ScaledRows, rows: Indices, columns: Indices) -> Array:
    """Return in how many rows lies what 1 and the columns before do not tell of each column.

    Infinity where nothing is left.

    Shapes: rows (n_rows,), columns (n_columns,): which of `values`; returns (n_columns,).
    """
    fourth = np.zeros(len(columns))
    for left in _orthogonal(values, rows, columns):
        squares = left * left
        fourth += np.einsum("ij,ij->j", squares, squares)
    return 1.0 / np.maximum(fourth, np.finfo(float).tiny)


def stand_out(values: Array, n_rows: int, n_earlier: int) -> Flags:
    """Return by which columns one of the first rows has much leverage, with those before it.

    Shapes: values (n_rows or more, n_earlier + n_columns); returns (n_columns,).
    """
    found = np.zeros(values.shape[1] - n_earlier, dtype=bool)
    columns = np.arange(values.shape[1])
    for left in _orthogonal(values, np.arange(len(values)), columns):
        squares, n_rows = left[:n_rows] ** 2, n_rows - len(left)
        before = squares[:, :n_earlier].sum(axis=1)
        shares = before[:, None] + np.cumsum(squares[:, n_earlier:], axis=1)
        found |= (shares >= _limit(before)[:, None]).any(axis=0)
        if n_rows <= 0:
            break
    return found


def _limit(before: Array) -> Array:
    """Return the least leverage that stands out, by that in columns of earlier runs, by row."""
    return np.maximum(_LEVERAGE, before + _ADDS)


def one_by_one(
    values: Array | ScaledRows,
    rows: Indices,
    columns: Indices,
    groups: list[tuple[Indices, Array]],
    enough: float,
    safe: Flags,
) -> None:
    """Find columns that are not safe, one after the other, each without those found before.

    Shapes: columns (n_told,); groups: columns of the same cells, (n_among,), and their values,
    (n_rows or more, n_earlier + n_among); safe (n_columns,): changed.
    """
    every = _Left(np.take(values[rows], columns, axis=1))
    beside = [(among, _Left(made, made.shape[1] - len(among))) for among, made in groups]
    for k, j in enumerate(columns):
        parts, left = [(every, k)], every.of(k)
        if left is not None and 1.0 / (left**4).sum() <= enough:
            safe[j] = False
            continue
        for among, group in beside:
            if len(at := np.flatnonzero(among == j)):
                place = group.n_earlier + int(at[0])
                parts.append((group, place))
                safe[j] &= not group.stands_out(place, len(rows))
        if safe[j]:
            for part, place in parts:
                part.add(place)


class _Left:
    """What is left of columns once 1 and those that were added are subtracted."""

    def __init__(self, values: Array, n_earlier: int = 0) -> None:
        self.n_earlier = n_earlier
        # Rows are looked at once for each column; all else is of the size of the columns.
        self._rows, self._columns = np.linalg.qr(np.column_stack([np.ones(len(values)), values]))
        self._added = np.zeros((len(self._columns), 0))
        self._shares = np.zeros(len(values))
        for place in range(-1, n_earlier):
            self.add(place)
        self._shares -= 1.0 / len(values)  # the leverage of 1
        self._limit = _limit(self._shares)

    def of(self, place: int) -> Array | None:
        """Return what is left of a column, of length 1; None where nothing is."""
        found = self._direction(place)
        return None if found is None else self._rows @ found

    def stands_out(self, place: int, n_rows: int) -> bool:
        """Tell whether one of the first rows has much leverage, this column with those added."""
        left = self.of(place)
        shares = self._shares if left is None else self._shares + left**2
        return bool((shares >= self._limit)[:n_rows].any())

    def add(self, place: int) -> None:
        """Subtract a column from later ones, too."""
        found = self._direction(place)
        if found is not None:
            self._added = np.column_stack([self._added, found])
            self._shares += (self._rows @ found) ** 2

    def _direction(self, place: int) -> Array | None:
        column = self._columns[:, 1 + place]
        left = column
        for _ in range(2):  # once more for what rounding leaves
            left = left - self._added @ (self._added.T @ left)
        size = float(np.linalg.norm(left))
        return left / size if size > _ZERO * float(np.linalg.norm(column)) else None


def _orthogonal(values: Array | ScaledRows, rows: Indices, columns: Indices) -> Iterator[Array]:
    """Give what is left of columns, of length 1, or 0 where nothing is; some rows each."""
    parts = np.split(rows, range(_ROWS, len(rows), _ROWS))
    if len(rows) <= len(columns) + 1:
        return

    def block(part: Indices) -> Array:
        own = np.ones((len(part), 1 + len(columns)))
        own[:, 1:] = np.take(values[part], columns, axis=1)  # of 32 bits, too
        return own

    left = np.ones(len(columns) + 1, dtype=bool)
    products = np.zeros((len(left), len(left)))
    for part in parts:
        own = block(part)
        products += own.T @ own
    r = _root(products)
    if r is None:
        r = np.zeros((0, len(left)))
        for part in parts:
            r = np.asarray(np.linalg.qr(np.vstack([r, block(part)]), mode="r"))
        left = np.abs(np.diag(r)) > _ZERO * np.sqrt((r**2).sum(axis=0))
        r = np.asarray(np.linalg.qr(r[:, left], mode="r"))
    turned = solve_triangular(r, np.eye(len(r)))
    for part in parts:
        out = np.zeros((len(part), len(columns) + 1))
        out[:, left] = block(part)[:, left] @ turned
        yield out[:, 1:]


def _root(products: Array) -> Array | None:
    """Return the triangular root of products, which is fast; None where columns nearly coincide."""
    length = np.sqrt(np.diag(products))
    if not (length > 0.0).all():
        return None
    try:
        root = cholesky(products / np.outer(length, length))
    except LinAlgError:
        return None
    return np.asarray(root * length) if np.diag(root).min() > _CLEAR else None
