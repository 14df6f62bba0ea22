"""Columns that come down to few rows: alone, or once the columns before them are subtracted.

From sums of products of columns the server has those of each column less what 1 and the columns
before it tell of it. Where a value far out is nearly all of a column, or two columns differ in a
row, the product of that with another party's column is a cell of it. So in every atom what is left
of a column lies, in effect, in as many rows as a rare level has at least.

Statistical offices withhold totals that one contributor dominates: Cox, "Linear sensitivity
measures in statistical disclosure control", Journal of Statistical Planning and Inference 5 (1981).
The number of rows is that of Hill, "Diversity and evenness", Ecology 54 (1973), of order 2.
"""

import numpy as np
from scipy.linalg import solve_triangular

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.products.columns import ScaledRows
from flwr_vertical.products.rare_levels import LevelAtoms

FEWEST = 3
"""In so many rows what is left of a column lies at least; fewer where an owner tells of fewer."""

_SHARE = 10  # Of a set of so many rows one is enough: its owner tells of so few

_ZERO = 1e-10  # What is left of a column, to its length, that products do not tell from 0
_ROWS = 65_536  # at a time


def withhold_lone_rows(
    values: Array | ScaledRows, withheld: Flags, atoms: LevelAtoms, needed: int
) -> None:
    """Withhold columns in groups of rows where what is left of them lies in too few.

    Shapes: values (n_rows, n_columns); withheld (n_groups, n_columns): changed.
    """
    if needed < 2:  # any column lies in one row
        return
    known: dict[tuple[tuple[int, ...], bytes], Flags] = {}

    def is_safe(found: list[int], j: int) -> bool:
        groups = {int(g) for g in atoms.group[found] if g >= 0}
        told = ~withheld[sorted(groups)].any(axis=0) if groups else ~withheld.all(axis=0)
        key = tuple(found), told.tobytes()
        if key not in known:
            rows = np.isin(atoms.of_row, found)
            enough = min(needed, rows.sum() / _SHARE) - 1e-3
            known[key] = rows_behind(values, rows, told) > enough
        return bool(known[key][j])

    while True:
        before = withheld.copy()
        for j in range(withheld.shape[1]):
            unsafe = atoms.unsafe_groups(lambda found, j=j: is_safe(found, j))  # type: ignore[misc]
            withheld[sorted(unsafe), j] = True
        if (withheld == before).all():
            return


def rows_behind(values: Array | ScaledRows, rows: Flags, told: Flags) -> Array:
    """Return in how many rows what is left of each column lies, of those that are told of.

    It is what 1 and the columns before do not tell of it. Infinity where nothing is left.

    Shapes: rows (n_rows,): those that count; told (n_columns,); returns (n_columns,).
    """
    out = np.full(len(told), np.inf)
    columns = np.flatnonzero(told)
    at = [part[rows[part]] for part in np.split(np.arange(len(rows)), _cuts(len(rows)))]

    def block(part: Array) -> Array:
        return np.column_stack([np.ones(len(part)), values[part][:, columns]])

    r = np.zeros((0, len(columns) + 1))
    for part in at:
        r = np.linalg.qr(np.vstack([r, block(part)]), mode="r")
    if len(r) <= len(columns):
        return out  # fewer rows than columns: nothing is left of the last ones
    length = np.sqrt((r**2).sum(axis=0))
    left = np.abs(np.diag(r)) > _ZERO * length
    r = np.linalg.qr(r[:, left], mode="r")
    fourth = np.zeros(left.sum())
    for part in at:
        fourth += (solve_triangular(r, block(part)[:, left].T, trans="T") ** 4).sum(axis=1)
    out[columns[left[1:]]] = 1.0 / fourth[1:]
    return out


def _cuts(n_rows: int) -> list[int]:
    return list(range(_ROWS, n_rows, _ROWS))
