"""A party's columns as whole numbers modulo 2^64, some rows at a time.

Whole, the encoded columns of 1,000,000 rows would take as much memory as the table again, and the
streams of the group several times that.
"""

from collections.abc import Iterator

import numpy as np

from flwr_vertical.arrays import Array, Ring
from flwr_vertical.errors import FixedPointOverflowError
from flwr_vertical.products.column_products import BLOCK_ROWS
from flwr_vertical.products.columns import HeldColumns
from flwr_vertical.products.ring import encode_rows, fraction_bits

_LARGEST = 2.0**500
"""A column's root mean square must be below: its square has to fit a float."""


class EncodedColumns:
    """Columns divided by a power of two each, encoded, 0 in samples that the party lacks."""

    def __init__(self, held: HeldColumns, limbs: int, party: str, room: int = 0) -> None:
        self.held, self._limbs, self.room = held, limbs, room
        self._bits = fraction_bits(held.n_samples)
        self.shape = held.n_samples, limbs * held.values.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->j", held.values, held.values)
        size = np.sqrt(squares / max(held.n_samples, 1))
        wrong = np.flatnonzero(~(size < _LARGEST))
        if len(wrong):
            j = int(wrong[0])
            column = held.values[:, j]
            # Only to a power of two: the message leaves the node, and a cell must not.
            finite = np.isfinite(column).all()
            largest = 2.0 ** np.ceil(np.log2(np.abs(column).max())) if finite else float("nan")
            name = repr(held.names[j]) if held.names else f"number {j}"
            raise FixedPointOverflowError(
                f"party {party!r}, column {name}: its absolute values are up to "
                f"{largest:.6g} (a power of two), and a root mean square below {_LARGEST:.3g} fits "
                "whole numbers of 64 bits; give the column in larger units, or take it out"
            )
        size[size == 0.0] = 1.0
        if held.noise is not None:
            if (size > 1.0).any():
                raise FixedPointOverflowError(
                    f"party {party!r}: columns with noise of their own are offered in units in "
                    f"which no value is above 1, and one has a root mean square of {size.max():.6g}"
                )
            size = np.ones_like(size)
        self.scale: Array = 2.0 ** (np.ceil(np.log2(size)) + room)

    def rows(self, start: int, stop: int) -> Ring:
        """Return rows of the encoded columns, of shape (stop - start, limbs * n_columns)."""
        filled = np.zeros((stop - start, len(self.scale)))
        first, last = np.searchsorted(self.held.rows, [start, stop])
        filled[self.held.rows[first:last] - start] = self.held.values[first:last] / self.scale
        return encode_rows(filled, self._bits, self._limbs)

    def blocks(self) -> Iterator[Ring]:
        """Go through all rows."""
        for start in range(0, self.shape[0], BLOCK_ROWS):
            yield self.rows(start, min(start + BLOCK_ROWS, self.shape[0]))
