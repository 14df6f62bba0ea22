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

KnownSets = dict[tuple[bytes, bytes], Flags]
"""By a set of rows, and the columns that are told of: which of these may be."""

_LEVERAGE = 0.5  # Of a row in columns of the same cells, at most
_SHARE = 10  # Of a set of so many rows one is enough: its owner tells of so few
_ZERO = 1e-10  # What is left of a column, to its length, that products do not tell from 0
_CLEAR = 1e-3  # What is left of a column, to its length, that its square tells well enough
_ROWS = 65_536  # at a time


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
        key = digest, told.tobytes()
        if key not in known:
            enough = min(needed, len(rows) / _SHARE) - 1e-3
            columns = np.flatnonzero(told)
            safe: Flags = np.ones(len(told), dtype=bool)
            safe[columns] = rows_behind(held.values, rows, columns) > enough
            for made, before in together if enough > 1.0 / _LEVERAGE else ():
                columns = np.intersect1d(made, np.flatnonzero(told))
                values = np.take(held.values[rows], columns, axis=1)
                if before.values.shape[1]:
                    values = before.around(own[rows], values)
                most = leverage(values, len(rows))[values.shape[1] - len(columns) :]
                safe[columns] &= most < _LEVERAGE
            known[key] = safe
        return bool(known[key][j])

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


def leverage(values: Array, n_rows: int) -> Array:
    """Return the largest leverage of the first rows in 1, each column and those before it.

    Shapes: values (n_rows or more, n_columns); returns (n_columns,).
    """
    most, columns = np.zeros(values.shape[1]), np.arange(values.shape[1])
    for left in _orthogonal(values, np.arange(len(values)), columns):
        shares, n_rows = np.cumsum(left[:n_rows] ** 2, axis=1), n_rows - len(left)
        most = np.maximum(most, shares.max(axis=0, initial=0.0))
        if n_rows <= 0:
            break
    return most


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
