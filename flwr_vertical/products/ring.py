"""Matrices of whole numbers modulo 2^64: encoding, exact products, decoding.

A column x of mean square 1 travels as ``rint(x 2^f)``. By the inequality of Cauchy and Schwarz a
product of two such columns over n rows is at most ``n 2^(2 f)``, so with ``f <= (62 - log2 n) / 2``
no product of columns overflows, whatever the other columns are: each party checks its own norms.

One limb gives products to ``2^-f`` times the columns' norms. Where that is too coarse, a second
limb carries what rounding left: ``x = (high + low 2^-f) 2^-f``. A product then is two numbers,
``high'high`` and ``high'low + low'high``; what is left out is of size ``2^(-2 f)``.
"""

import math
from collections.abc import Sequence

import numpy as np

from flwr_vertical.arrays import Array, Ring
from flwr_vertical.errors import FixedPointOverflowError

_ROWS = 4096
"""Rows per pass of a product: what is transposed stays in the cache."""


def fraction_bits(n_rows: int) -> int:
    """Return the most fraction bits with which products over so many rows cannot overflow."""
    return max((62 - math.ceil(math.log2(max(n_rows, 1)))) // 2, 0)


def encode(
    x: Array, bits: int, limbs: int, names: list[str] | None = None, party: str = ""
) -> Ring:
    """Encode columns.

    Shapes: x (n_rows, n_columns): finite, each column of mean square at most 1 (to rounding) over
    the rows; returns (n_rows, limbs * n_columns): all high limbs, then all low ones.
    """
    n_rows = max(len(x), 1)
    square = np.einsum("ij,ij->j", x, x) / n_rows
    wrong = np.flatnonzero(~(square <= 1.0 + 1e-6))
    if len(wrong):
        j = int(wrong[0])
        name = repr(names[j]) if names else f"number {j}"
        raise FixedPointOverflowError(
            f"party {party!r}, column {name}: its root mean square is {math.sqrt(square[j]):.6g}, "
            f"and at most 1 fits a product over {n_rows:,} rows with {bits} fraction bits; divide "
            "the column by its root mean square first"
        )
    return encode_rows(x, bits, limbs)


def encode_rows(x: Array, bits: int, limbs: int) -> Ring:
    """Encode some rows of columns whose size has been checked; parameters as of `encode`."""
    scaled = x * 2.0**bits
    high = np.rint(scaled)
    out = np.empty((len(x), limbs * x.shape[1]), dtype=np.int64)
    out[:, : x.shape[1]] = high
    if limbs == 2:
        out[:, x.shape[1] :] = np.rint((scaled - high) * 2.0**bits)
    return out.view(np.uint64)


def product(a: Ring, b: Ring) -> Ring:
    """Return ``a' b`` modulo 2^64.

    Shapes: a (n_rows, n_a); b (n_rows, n_b); returns (n_a, n_b).
    """
    total = np.zeros((a.shape[1], b.shape[1]), dtype=np.uint64)
    for start in range(0, len(a), _ROWS):
        rows = slice(start, start + _ROWS)
        total += _product(np.ascontiguousarray(a[rows].T), np.ascontiguousarray(b[rows].T))
    return total


def _product(a: Ring, b: Ring) -> Ring:
    # Sums run along memory: four times as fast as a matrix product of integers.
    found: Ring = np.einsum("in,jn->ij", a, b)
    return found


def limbs_of(encoded: Ring, limbs: int) -> list[Ring]:
    """Return the limbs of encoded columns, transposed: copies of shape (n_columns, n_rows)."""
    width = encoded.shape[1] // limbs
    return [np.ascontiguousarray(encoded[:, i * width : (i + 1) * width].T) for i in range(limbs)]


def product_of_limbs(a: Sequence[Ring], b: Sequence[Ring]) -> Ring:
    """Return ``a' b`` of columns in limbs, modulo 2^64.

    Shapes: a, b (n_a, n_rows): of `limbs_of`, as many of both; returns (n_limbs, n_a, n_b):
    ``high'high``, and ``high'low + low'high`` where there are two limbs.
    """
    found = [_product(a[0], b[0])]
    if len(a) == 2:
        found.append(_product(a[0], b[1]) + _product(a[1], b[0]))
    return np.stack(found)


def decode(ring: Ring, bits: int) -> Array:
    """Turn a product of encoded columns into numbers.

    Shapes: ring (n_limbs, n_a, n_b): of `product_of_limbs`; returns (n_a, n_b).
    """
    signed = np.ascontiguousarray(ring).view(np.int64)
    total = np.zeros(ring.shape[1:])
    for i in range(len(ring)):
        total += signed[i].astype(np.float64) * 2.0 ** (-bits * (2 + i))
    return total
