"""A party's attributes as numbers between 0 and 1, and the way back to valid values.

Liu, He, Tan et al., Section 3.3 (1): min-max for numbers, one-hot for levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Integers


def by_columns(
    codes: Array, n_levels: Sequence[int], scaled: Callable[[Array, int], Array]
) -> Array:
    """Return 0 and 1 for each level, and what `scaled` makes of the column of a number."""
    return np.hstack(
        [
            (column[:, None] == np.arange(levels)).astype(np.float64)
            if levels
            else scaled(column, j)[:, None]
            for j, (column, levels) in enumerate(zip(codes.T, n_levels, strict=True))
        ]
    )


@dataclass(frozen=True)
class Encoding:
    """Where each attribute stands in the encoded matrix, and its range."""

    low: Array  # (n_columns,): of numbers; 0 and 1 of levels
    high: Array  # (n_columns,): of numbers; 0 and 1 of levels
    n_levels: tuple[int, ...]  # Of each attribute; 0 of a number, which takes one encoded column

    @classmethod
    def fit(cls, codes: Array, n_levels: Sequence[int]) -> "Encoding":
        """Take the ranges of codes, NaN = missing; every column has a value."""
        numeric = np.array(n_levels) == 0
        low = np.where(numeric, np.nanmin(codes, axis=0), 0.0)
        high = np.where(numeric, np.nanmax(codes, axis=0), 1.0)
        return cls(low, high, tuple(n_levels))

    @property
    def widths(self) -> Integers:
        """Encoded columns of each attribute; shape (n_columns,)."""
        return np.maximum(np.array(self.n_levels, dtype=np.int64), 1)

    @property
    def width(self) -> int:
        """Encoded columns of all attributes."""
        return int(self.widths.sum())

    @property
    def is_level(self) -> Flags:
        """Which encoded columns belong to levels; shape (width,)."""
        return np.repeat(np.array(self.n_levels) > 0, self.widths)

    def encode(self, codes: Array) -> tuple[Array, Array]:
        """Return encoded values, 0 where missing, and the mask, 1 where it is there: (n, width)."""
        span = self.high - self.low
        scale = np.where(span > 0, span, 1.0)
        scaled = by_columns(codes, self.n_levels, lambda own, j: (own - self.low[j]) / scale[j])
        values = np.nan_to_num(scaled)
        mask = np.repeat(~np.isnan(codes), self.widths, axis=1).astype(np.float64)
        return values * mask, mask

    def decode(self, values: Array) -> Array:
        """Return codes: numbers within their range, the likeliest level."""
        ends = np.cumsum(self.widths)
        out = np.empty((len(values), len(self.n_levels)))
        for j, (end, width) in enumerate(zip(ends, self.widths, strict=True)):
            block = values[:, end - width : end]
            if self.n_levels[j]:
                out[:, j] = block.argmax(axis=1)
            else:
                span = self.high[j] - self.low[j]
                out[:, j] = self.low[j] + span * np.clip(block[:, 0], 0.0, 1.0)
        return out
