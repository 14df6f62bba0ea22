"""Completing rows in whole numbers, at server and parties alike; pure numerics.

Columns travel as whole numbers under a key stream (`products.arithmetic`). Completing a row is
linear: ``z = L_o (x_o - mu_o)`` with coefficients L_o that all know (`Point`). So whoever has the
columns under a mask has the completed rows under the completed mask:

    u = x + r,    w = L u = L x + L r = z + m    modulo 2^64.

The server has all w, each party its own term of z and all masks m. So one private sum

    sum_i z_i m_i' + m_i z_i' + m_i m_i'

of terms of the parties lets the server open ``sum_i z_i z_i'`` over all rows, and nothing of a
pattern of rows. w is uniform, and the private sum follows from w and what is opened.

A completed row is in common units of all columns: those in which they were offered, times
``2^unit_bits``. A column that travels as ``x 2^(b - s)`` is multiplied by ``2^(unit_bits - b + s)``
where it is observed. At the end of a completed row stand the label and the number 1.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices, Integers, Integers32, Ring
from flwr_vertical.products.arithmetic import fraction_bits
from strategies.linear.moments.scoring import PatternCounts

ROOM = 12
"""Bits by which columns are smaller than products over all rows would allow."""

_BITS = ROOM - 3
"""Of coefficients. So products of completed rows are as large as 128 times those of columns."""

LEAST_SHIFT = ROOM - _BITS
"""Of columns: a smaller one would need coefficients below 1."""

GRID = 32
"""Means and standard deviations are told to this share of the unit of a column."""

LEAST_SPREAD, MOST_SPREAD = 7, 2 * GRID
"""Of standard deviations, in units of the grid: a column in rough units has from 1/2 to 1."""

MOST_MEAN = 4 * GRID
"""Of means, which are near 0 in rough units."""

LEAST_EIGENVALUE = 0.01
"""Of correlations: the smaller, the more a completed row can hang on one observed number."""

_SURE = 0.51
"""By so much a coefficient may differ from its value: it is rounded."""


def unit_bits(n_rows: int) -> int:
    """Return with how many fraction bits a completed row is a whole number."""
    return fraction_bits(n_rows) - ROOM + _BITS


@dataclass(frozen=True)
class Point:
    """Mean and covariance by which rows are completed, as whole numbers; the label is last."""

    mean: Integers  # (n_columns,): in `GRID` parts of a unit
    spread: Integers  # (n_columns,): standard deviations, in `GRID` parts of a unit
    # (n_columns, n_columns): correlations times the root of the rows that hold both columns; the
    # diagonal is 0
    correlations: Integers
    # (n_columns,): standard deviations over the rows of each column, in `GRID` parts of a unit: of
    # this size is the noise. That of the label is its unit.
    sizes: Integers

    @classmethod
    def none(cls, n_columns: int) -> "Point":
        """Return the point by which nothing is completed: columns are independent, with mean 0."""
        mean, spread = np.zeros(n_columns, dtype=np.int64), np.full(n_columns, GRID)
        none = np.zeros((n_columns, n_columns), dtype=np.int64)
        return cls(mean, spread, none, spread.copy())

    @classmethod
    def near(
        cls, mean: Array, covariance: Array, n_both: Array, sizes: Integers, weight: float = 0.0
    ) -> "Point":
        """Round a mean and a covariance, which is brought to be positive definite.

        Correlations are rounded to ``n^-1/2`` of the rows that hold both columns, the size of their
        errors: exact ones would be equations of other parties' columns.

        Shapes: mean, sizes (n_columns,); covariance, n_both (n_columns, n_columns); weight: of the
        identity in the correlations.
        """
        size = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
        spread = whole_sizes(size)
        values, vectors = np.linalg.eigh(covariance / np.outer(size, size))
        root = np.sqrt(np.maximum(n_both, 1.0))
        floor = LEAST_EIGENVALUE
        while True:
            raised = (vectors * np.maximum(values, floor)) @ vectors.T
            scale = np.sqrt(np.diag(raised))
            rounded = np.rint((1.0 - weight) * raised / np.outer(scale, scale) * root)
            np.fill_diagonal(rounded, 0.0)
            centre = np.clip(np.rint(mean * GRID), -MOST_MEAN, MOST_MEAN)
            found = cls(_whole(centre), spread, _whole(rounded), sizes)
            if found.least_eigenvalue(n_both) >= LEAST_EIGENVALUE:
                return found
            floor *= 1.5

    def correlation(self, n_both: Array) -> Array:
        """Return the matrix of correlations, shape (n_columns, n_columns)."""
        found = self.correlations / np.sqrt(np.maximum(n_both, 1.0))
        return np.asarray(found + np.eye(len(found)))

    def covariance(self, n_both: Array) -> Array:
        """Return the covariance in units of the columns, shape (n_columns, n_columns)."""
        size = self.spread / GRID
        return np.asarray(self.correlation(n_both) * np.outer(size, size))

    def least_eigenvalue(self, n_both: Array) -> float:
        """Return the smallest eigenvalue of the correlations."""
        return float(np.linalg.eigvalsh(self.correlation(n_both))[0])

    @property
    def centres(self) -> Array:
        """The mean in units of the columns, shape (n_columns,)."""
        return np.asarray(self.mean / GRID)

    def digest(self) -> bytes:
        """Return what names the point."""
        parts = (self.mean, self.spread, self.correlations, self.sizes)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()


def whole_sizes(deviations: Array) -> Integers:
    """Return standard deviations in `GRID` parts of a unit, as `Point` has them."""
    return _whole(np.clip(np.rint(deviations * GRID), LEAST_SPREAD, MOST_SPREAD))


def _whole(values: Array) -> Integers:
    return np.asarray(values, dtype=np.int64)


@dataclass(frozen=True)
class RowPatterns:
    """Rows that take part, by which parties hold them; some party holds each of them."""

    holders: Flags  # (n_patterns, n_parties)
    rows: Indices  # (n_taken,): their numbers, pattern by pattern
    ends: Integers  # (n_patterns + 1,): where each pattern's rows begin, and end
    owner: Integers  # (n_columns - 1,): party of each column

    @classmethod
    def of(cls, taken: Flags, held: Flags, widths: list[int]) -> "RowPatterns":
        """Sort rows.

        Shapes: taken (n_samples,); held (n_samples, n_parties).
        """
        rows = np.flatnonzero(taken & held.any(axis=1))
        holders, pattern = np.unique(held[rows], axis=0, return_inverse=True)
        pattern = pattern.reshape(-1)
        order = np.argsort(pattern, kind="stable")
        ends = np.searchsorted(pattern[order], np.arange(len(holders) + 1))
        owner = np.repeat(np.arange(len(widths)), widths)
        return cls(np.asarray(holders, dtype=bool), rows[order], ends, owner)

    @property
    def counts(self) -> PatternCounts:
        """Columns that each pattern holds, the label among them, and its rows."""
        label = np.ones((len(self.holders), 1), dtype=bool)
        observed = np.hstack([self.holders[:, self.owner], label])
        return PatternCounts(observed, np.diff(self.ends).astype(np.float64))

    @property
    def joint_rows(self) -> Array:
        """Rows that hold two columns, shape (n_columns, n_columns)."""
        return self.counts.joint_rows

    def blocks(self, flat: Integers32) -> Iterator[tuple[int, Indices, Indices, Ring]]:
        """Go through patterns: number, columns that are observed, others, their coefficients.

        Shapes: flat (n_coefficients,): by pattern, missing column and observed column.
        """
        at = 0
        for number, observed in enumerate(self.counts.observed):
            o, m = np.flatnonzero(observed), np.flatnonzero(~observed)
            part = flat[at : at + len(o) * len(m)].reshape(len(m), len(o))
            at += part.size
            yield number, o, m, part.astype(np.int64).view(np.uint64)


def exact_coefficients(point: Point, patterns: RowPatterns, shifts: Integers) -> Array:
    """Return the coefficients of missing columns before rounding, as in `RowPatterns.blocks`.

    Shapes: shifts (n_columns,): a column is divided by ``2^shifts`` before it travels; returns
    (n_coefficients,).
    """
    covariance = point.covariance(patterns.joint_rows)
    scale, parts = 2.0 ** (_BITS + shifts - ROOM), [np.zeros(0)]
    for observed in patterns.counts.observed:
        o, m = np.flatnonzero(observed), np.flatnonzero(~observed)
        inner, across = covariance[np.ix_(o, o)], covariance[np.ix_(o, m)]
        parts.append((np.linalg.solve(inner, across) * scale[o, None]).T.reshape(-1))
    return np.concatenate(parts)


def coefficients(point: Point, patterns: RowPatterns, shifts: Integers) -> Integers32:
    """Return the coefficients of missing columns, for all patterns: `RowPatterns.blocks`."""
    return np.rint(exact_coefficients(point, patterns, shifts)).astype(np.int32)


def are_those_of(flat: Integers32, point: Point, patterns: RowPatterns, shifts: Integers) -> bool:
    """Tell whether coefficients are those of a point; their own digest binds rounding."""
    exact = exact_coefficients(point, patterns, shifts)
    if flat.shape != exact.shape:
        return False
    return bool((np.abs(flat - exact) <= _SURE + 1e-9 * np.abs(exact)).all())


def lifts(flat: Integers32, patterns: RowPatterns, shifts: Integers) -> Array:
    """Return the coefficients in units of the columns, as they were used.

    Shapes: returns (n_patterns, n_columns, n_columns): 0 for columns that are not observed.
    """
    d = len(patterns.owner) + 1
    found = np.zeros((len(patterns.holders), d, d))
    scale = 2.0 ** (_BITS + shifts - ROOM)
    for number, o, m, part in patterns.blocks(flat):
        found[number, o, o] = 1.0
        found[number][np.ix_(m, o)] = part.view(np.int64) / scale[o]
    return found


def whole_centres(point: Point, n_rows: int, shifts: Integers) -> Ring:
    """Return the mean as the columns travel, shape (n_columns,)."""
    scaled = np.rint(point.centres * 2.0 ** (fraction_bits(n_rows) - shifts))
    return np.asarray(scaled, dtype=np.int64).view(np.uint64)


def complete(values: Ring, flat: Integers32, patterns: RowPatterns, shifts: Integers) -> Ring:
    """Complete rows.

    Shapes: values (n_sides, n_taken, n_columns): of several terms of the rows, in the order of
    `RowPatterns.rows`, 0 where a column is not observed; returns (n_sides, n_taken, n_columns).
    """
    powers = np.uint64(1) << np.asarray(_BITS + shifts - ROOM, dtype=np.uint64)
    out = values * powers
    for number, o, m, part in patterns.blocks(flat):
        here = slice(int(patterns.ends[number]), int(patterns.ends[number + 1]))
        if len(m):
            rows = np.ascontiguousarray(values[:, here][:, :, o])
            out[:, here, m[0] : m[-1] + 1][:, :, m - m[0]] = rows @ part.T
    return out


def products_of_completed(one: Ring, other: Ring) -> Ring:
    """Return ``one' other + other' one`` modulo 2^64.

    Shapes: one, other (n_taken, n_columns); returns (n_columns, n_columns).
    """
    found: Ring = one.T @ other
    return found + found.T
