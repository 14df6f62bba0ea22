"""The moments of a party's own columns by group of rows, which it tells itself."""

from typing import Any

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.products.column_products import rows_by_group
from flwr_vertical.products.columns import HeldColumns

_ROWS = 65_536
"""Rows at a time, so that no copy of the columns is made."""


def own_moments(held: HeldColumns, group: Indices, withheld: Flags) -> dict[str, Any]:
    """Return sums and products of a party's columns by group of rows.

    Shapes: group (n_samples,): number of each row's group, -1 for rows in none; withheld
    (n_groups, n_columns): where a column is not told of.
    """
    n_groups, n_columns = withheld.shape
    sums = np.zeros((n_groups, n_columns))
    products = np.zeros((n_groups, n_columns, n_columns))
    own = group[held.rows]
    for start in range(0, len(own), _ROWS):
        block = held.values[start : start + _ROWS]
        for g, rows in enumerate(rows_by_group(own[start : start + _ROWS], n_groups)):
            if len(rows) and not withheld[g].all():
                part = block if len(rows) == len(block) else block[rows]
                sums[g] += part.sum(axis=0)
                products[g] += part.T @ part
    sums[withheld] = 0.0
    products[withheld] = 0.0
    products.swapaxes(1, 2)[withheld] = 0.0
    return {"sums": sums, "products": products}
