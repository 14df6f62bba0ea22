"""Products of columns that different parties hold, estimated from random projections.

Two parties draw one m x n matrix S of signs (Achlioptas, 2003) from a seed that the server does not
know, and send ``S X / sqrt(m)`` of their columns X (zero in samples that they lack). Since
``E[S'S / m] = I``, the product of the two sketches estimates ``X_k' X_l`` without bias, and
exactly as far as the two share samples.

Without S, a sketch tells the Gram matrix X'X to a relative error of about ``sqrt(2 / m)`` and
little more: its rows are almost normal with covariance ``X'X / m``. What signs leave beyond that
are fourth moments, which show (for m up to some thousand) only where one sample holds a third or
more of the sum of squares of a column, or of a combination of columns: outliers, or fewer than
some three samples per column. The peer knows S and must not see the sketch: with it, the peer
could solve for X if X has up to m rows, and for sparse or discrete columns of more.

Rank correlations between parties come from sketches of rank scores.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.crypto.pair_seeds import packed_signs, unpack_signs
from flwr_vertical.errors import DataError, ProtocolError

MAX_NOISE = 0.18
"""Rank correlations with a larger standard deviation under independence say nothing."""


def sketch(
    matrix: Array, rows: npt.NDArray[np.integer[Any]], n_samples: int, seed: bytes, size: int
) -> Array:
    """Multiply a party's columns by the signs of a seed.

    Shapes: matrix (n_rows, p): the party's columns in the rows it holds, finite; rows (n_rows,):
    aligned samples of these rows, each once, in any order; returns (size, p): ``S X / sqrt(m)``.
    """
    matrix, rows = np.asarray(matrix, dtype=np.float64), np.asarray(rows)
    if matrix.ndim != 2 or rows.shape != matrix.shape[:1]:
        raise DataError(
            "a sketch needs one aligned sample per row of the matrix, got a matrix of shape "
            f"{matrix.shape} and rows of shape {rows.shape}"
        )
    if not np.isfinite(matrix).all():
        raise DataError("a sketch needs finite values; put 0 where a cell is missing")
    total = np.zeros((size, matrix.shape[1]))
    if not len(rows):
        return total
    if np.any(np.diff(rows) < 0):
        order = np.argsort(rows, kind="stable")
        matrix, rows = matrix[order], rows[order]
    if rows[0] < 0 or rows[-1] >= n_samples or np.any(np.diff(rows) == 0):
        raise DataError(
            f"aligned samples must be different numbers from 0 to {n_samples - 1}, got "
            f"{len(rows)} from {rows[0]} to {rows[-1]}, {len(np.unique(rows))} different"
        )
    start, end = int(rows[0]), int(rows[-1]) + 1
    done = 0
    for packed in packed_signs(seed, end - start, size, start):
        stop = int(np.searchsorted(rows, start + len(packed)))
        held = packed[rows[done:stop] - start]
        total += unpack_signs(held, size, np.float64).T @ matrix[done:stop]
        start, done = start + len(packed), stop
    total /= np.sqrt(size)
    return total


def estimate_products(sketch_a: Array, sketch_b: Array) -> Array:
    """Estimate the products of the columns of two parties from sketches of one seed.

    Shapes: sketch_a, sketch_b (size, p_a): of `sketch`; returns (p_a, p_b): unbiased for ``X_a'
    X_b`` over the samples that both hold.
    """
    if sketch_a.ndim != 2 or sketch_b.ndim != 2 or len(sketch_a) != len(sketch_b):
        raise ProtocolError(
            "two sketches of one pair must have the same number of rows, got shapes "
            f"{sketch_a.shape} and {sketch_b.shape}"
        )
    products: Array = sketch_a.T @ sketch_b
    return products


def standard_error_of_products(
    squares_a: Array,
    squares_b: Array,
    products: Array,
    size: int,
    products_of_squares: Array | float = 0.0,
) -> Array:
    """Return the standard errors of `estimate_products`, the data being fixed.

    For columns a and b, ``Var = (|a|^2 |b|^2 + (a'b)^2 - 2 sum_i a_i^2 b_i^2) / m``.

    Shapes: squares_a, squares_b (p_a,): sums of squares of the columns over **all** rows that
    their party holds, shared or not: exact, or those of the columns of a sketch; products (p_a,
    p_b): of the columns; estimates will do; products_of_squares (p_a, p_b): ``sum_i a_i^2 b_i^2``
    over shared samples, which the server cannot know; returns (p_a, p_b).
    """
    variance = np.outer(squares_a, squares_b) + np.square(products) - 2.0 * products_of_squares
    # Estimates need not fit together as exact values do.
    errors: Array = np.sqrt(np.maximum(variance, 0.0) / size)
    return errors


def rank_scores(matrix: Array) -> Array:
    """Turn columns into standardised ranks, bounded whatever the units and tails.

    Shapes: matrix (n_rows, p): NaN = missing; returns (n_rows, p): average ranks with mean 0 and
    variance 1 (divisor: their number) over the observed cells of each column. 0 in missing cells
    and in columns with fewer than two different values.
    """
    scores = np.zeros(matrix.shape)
    for j in range(matrix.shape[1]):
        known = ~np.isnan(matrix[:, j])
        if not known.any():
            continue
        ranks = pd.Series(matrix[known, j]).rank().to_numpy(copy=True)
        ranks -= (len(ranks) + 1) / 2
        # Of a constant column the ranks are all (n + 1) / 2, exactly, and nothing is left.
        spread = np.sqrt(np.mean(np.square(ranks)))
        scores[known, j] = ranks / spread if spread > 0 else 0.0
    return scores


def rank_correlations(scores_sketch_a: Array, scores_sketch_b: Array, n_shared: int) -> Array:
    """Estimate Spearman correlations between the columns of two parties.

    Shapes: scores_sketch_a, scores_sketch_b (size, p_a): `sketch` of the `rank_scores` of each
    party, of one seed; returns (p_a, p_b): with noise, so possibly beyond 1; NaN if no sample is
    shared.
    """
    products = estimate_products(scores_sketch_a, scores_sketch_b)
    return products / n_shared if n_shared > 0 else np.full_like(products, np.nan)


def rank_correlation_noise(n_a: int, n_b: int, n_shared: int, size: int) -> float:
    """Return the standard deviation of `rank_correlations` between independent columns.

    Let ``t`` be the exact sum over the shared samples of products of scores. If columns are
    independent, every pairing of one column's scores with the other's is equally likely. Then
    ``E t = 0``, ``E t^2 = n_shared + n_shared (n_shared - 1) / ((n_a - 1) (n_b - 1))`` (the chance
    correlation of finite samples), and signs add ``(n_a n_b + E t^2 - 2 n_shared) / m``. Mostly,
    the first term of this, ``n_a n_b / (m n_shared^2)`` of the result's square, is all that counts.
    """
    if min(n_a, n_b, n_shared) < 2:
        return float("inf")
    chance = n_shared + n_shared * (n_shared - 1) / ((n_a - 1) * (n_b - 1))
    variance = chance + (n_a * n_b + chance - 2 * n_shared) / size
    return float(np.sqrt(variance) / n_shared)
