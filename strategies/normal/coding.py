"""Columns of any kind as columns of a normal model, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from scipy.special import ndtr

from flwr_vertical.arrays import Array, Indices
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

    @property
    def variable(self) -> Indices:
        """Number of the own column of which each column holds a level, -1 of others."""
        numbers = [j if width > 1 else -1 for j, width in enumerate(self._widths)]
        return np.repeat(np.array(numbers, dtype=np.int64), self._widths)

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

    def own(self, values: Array) -> Array:
        """Return of each own column what `values` has of the first of its columns of the model."""
        return values[:, [span.start for span in self._spans]]

    def decode_drawn(self, mean: Array, noise: Array, error: Array) -> Array:
        """Return codes of draws.

        Numbers and ordinal levels get the noise added; other levels are drawn by their conditional
        shares, which are the means of indicators, clipped to [0, 1] and normalised, at the place
        where the noise of the first indicator stands in its distribution.

        Shapes: mean, noise, error (n_rows, n_columns): completed columns of the model, noise, and
        its standard deviation; returns (n_rows, n_own).
        """
        codes = self.decode(mean + noise)
        for j, (span, n) in enumerate(zip(self._spans, self.n_levels, strict=True)):
            if self.kinds[j] not in (Kind.CATEGORICAL, Kind.BINARY) or not n:
                continue
            first = span.start
            share = np.clip(mean[:, span], 0.0, 1.0)
            if share.shape[1] == 1:  # an indicator of the second level
                share = np.concatenate([1.0 - share, share], axis=1)
            ends = np.cumsum(share, axis=1)
            spread = np.where(error[:, first] > 0, error[:, first], 1.0)
            place = ndtr(noise[:, first] / spread)
            if span.stop - first > 1:
                place = 1.0 - place  # much noise of the first level's indicator means that level
            drawn = (ends / np.maximum(ends[:, -1:], 1e-12) < place[:, None]).sum(axis=1)
            codes[:, j] = np.minimum(drawn, n - 1)
        return codes

    def sources(self, columns: Sequence[str]) -> tuple[frozenset[str], ...]:
        """Return of which own column each column of the model is made."""
        pairs = zip(columns, self._widths, strict=True)
        return tuple(frozenset([name]) for name, width in pairs for _ in range(width))

    def names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return a name of each column of the model."""
        return tuple(
            name if width == 1 else f"{name} ({level + 1} of {width})"
            for name, width in zip(columns, self._widths, strict=True)
            for level in range(width)
        )
