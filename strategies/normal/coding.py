"""Columns of any kind as columns of a normal model, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.tables import Kind


@dataclass(frozen=True)
class Coding:
    """Numbers and ordinal levels as they are, other levels by an indicator each (of two: one)."""

    kinds: Sequence[Kind]
    n_levels: Sequence[int]  # 0 of a number

    @property
    def _widths(self) -> list[int]:
        return [
            n if kind is Kind.CATEGORICAL and n > 2 else 1
            for kind, n in zip(self.kinds, self.n_levels, strict=True)
        ]

    @property
    def _spans(self) -> list[slice]:
        ends = accumulate(self._widths)
        return [slice(end - w, end) for end, w in zip(ends, self._widths, strict=True)]

    def encode(self, codes: Array) -> Array:
        """Return the columns of the model.

        Shapes: codes (n_rows, n_own): of `to_codes`, NaN = missing; returns (n_rows, n_columns).
        """
        parts = [np.zeros((len(codes), 0))]
        for j, width in enumerate(self._widths):
            column = codes[:, [j]]
            if width > 1:
                indicators = (column == np.arange(width)).astype(np.float64)
                column = np.where(np.isnan(column), np.nan, indicators)
            parts.append(column)
        return np.concatenate(parts, axis=1)

    def decode(self, values: Array) -> Array:
        """Return codes: of levels the nearest, or the one with the largest indicator."""
        codes = np.empty((len(values), len(self.kinds)))
        for j, (span, n) in enumerate(zip(self._spans, self.n_levels, strict=True)):
            part = values[:, span]
            if part.shape[1] > 1:
                codes[:, j] = part.argmax(axis=1)
            elif n:
                codes[:, j] = np.clip(np.rint(part[:, 0]), 0, n - 1)
            else:
                codes[:, j] = part[:, 0]
        return codes

    def names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return a name of each column of the model."""
        return tuple(
            name if width == 1 else f"{name} ({level + 1} of {width})"
            for name, width in zip(columns, self._widths, strict=True)
            for level in range(width)
        )
