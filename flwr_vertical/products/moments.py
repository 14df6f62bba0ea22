"""Sums over groups of rows, as the server has them in the end, whichever way they were opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Array, Flags, Integers
from flwr_vertical.errors import DataError
from flwr_vertical.policy.defaults import min_rows
from flwr_vertical.products.noise import variances


@dataclass(frozen=True)
class Moments:
    """Sums over groups of rows."""

    # (n_groups, n_columns): of each column; columns of all parties in the order of their names
    sums: Array
    products: Array  # (n_groups, n_columns, n_columns): of products of two columns
    # (n_groups, n_columns, n_vectors): of products of a column and a vector of the server
    with_vectors: Array
    # (n_groups, n_columns): true where nothing is told of a column, and the sums above are 0: its
    # party has no row of the group or its block counts as missing, the party has too few rows, or a
    # value of the column is too rare there. For a method, the column is missing in that group
    withheld: Flags
    # Variance of the noise on each sum, of the shapes of the sums; None where no party adds any
    sums_variance: Array | None = None
    products_variance: Array | None = None
    vectors_variance: Array | None = None


def checked_groups(group: Integers, n_groups: int, n_samples: int | None = None) -> Integers:
    """Return the groups of rows, (n_samples,), -1 for none, if sums over them can be asked for."""
    group = np.asarray(group, dtype=np.int64)
    if n_groups < 1:
        raise DataError(
            "there is no group of rows to open sums over: all sets of rows with the same blocks "
            "missing are smaller than the minimum; lower 'min-rows' in the node configs, if the "
            "parties agree, or take fewer columns"
        )
    expected = group.shape if n_samples is None else (n_samples,)
    numbers = int(group.min(initial=-1)), int(group.max(initial=-1))
    if group.ndim != 1 or group.shape != expected or not -1 <= numbers[0] <= numbers[1] < n_groups:
        raise DataError(
            f"group has shape {group.shape} and numbers from {numbers[0]} to {numbers[1]}; "
            f"expected shape {expected} and numbers from -1 to {n_groups - 1}"
        )
    return group


def largest_minimum(
    parties: Sequence[str], own: Mapping[str, int], n_columns: int, n_vectors: int
) -> int:
    """Return the largest minimum of rows of all parties."""
    default = min_rows(n_columns, n_vectors)
    return max(own.get(name, default) for name in parties)


def assemble(
    told: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    products: Mapping[tuple[str, str], Array],
    with_vectors: Mapping[str, Array],
    n_vectors: int,
    unit: Array | None = None,
) -> dict[str, Any]:
    """Put together what parties told of their own columns and what was opened.

    Shapes: products (n_groups, n_a, n_b): by two parties, the later one first, products of their
    scaled columns; with_vectors (n_groups, n_columns, n_vectors): by party, products of its scaled
    columns with the server's vectors; unit (n_vectors,): what the vectors were divided by, for the
    variance of noise.
    """
    unit = np.ones(n_vectors) if unit is None else unit
    withheld = np.concatenate([np.asarray(told[n]["withheld"], bool) for n in names], axis=1)
    scale = np.concatenate([told[n]["scale"] for n in names])
    ends = np.cumsum([len(told[n]["scale"]) for n in names])
    at = {n: slice(e - len(told[n]["scale"]), e) for n, e in zip(names, ends, strict=True)}
    n_groups, n_columns = withheld.shape
    out = np.zeros((n_groups, n_columns, n_columns))
    by_vector = np.zeros((n_groups, n_columns, n_vectors))
    for (a, b), block in products.items():
        found = block * np.outer(scale[at[a]], scale[at[b]])
        out[:, at[a], at[b]], out[:, at[b], at[a]] = found, found.swapaxes(1, 2)
    for name in names:
        out[:, at[name], at[name]] = told[name]["products"]
        if name in with_vectors:
            by_vector[:, at[name]] = with_vectors[name] * scale[at[name]][:, None]
    out[withheld], by_vector[withheld] = 0.0, 0.0
    out.swapaxes(1, 2)[withheld] = 0.0
    sums = np.concatenate([told[n]["sums"] for n in names], axis=1)
    every = {"sums": sums, "products": out, "with_vectors": by_vector, "withheld": withheld}
    return every | variances(told, names, withheld, unit)
