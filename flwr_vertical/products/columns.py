"""The columns that a party multiplies, and which of the aligned samples it holds."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array

if TYPE_CHECKING:
    from flwr_vertical.products.noise import Noise


@dataclass(frozen=True)
class HeldColumns:
    """A party's columns in the samples that it holds.

    Parameters
    ----------
    values : numpy.ndarray of shape (n_held, n_columns)
        Finite.
    rows : numpy.ndarray of shape (n_held,)
        Numbers of these samples, the same at all parties; ascending, which is the order of the
        weights that the server sends.
    n_samples : int
        How many samples there are.
    names : tuple of str
        Names of the columns, for errors of this party; no message carries them.
    own : numpy.ndarray of shape (n_held,), optional
        Which of the party's own rows (`Party.own_ids`) these are. Its privacy ledger counts them;
        needed where `rows` are no aligned row numbers.
    noise : Noise, optional
        What noise the method gives to their sums. Nothing else of the columns shows in what is
        told of them then: they are offered in public units, in which none is above 1.
    """

    values: Array
    rows: npt.NDArray[np.integer[Any]]
    n_samples: int
    names: tuple[str, ...] = ()
    own: npt.NDArray[np.integer[Any]] | None = None
    noise: "Noise | None" = None

    def weighted(self, weight: Array) -> "HeldColumns":
        """Return the columns, each row times its weight; shape (n_held,)."""
        return replace(self, values=self.values * weight[:, None])

    @property
    def filled(self) -> Array:
        """All samples, 0 where the party lacks one; shape (n_samples, n_columns)."""
        filled = np.zeros((self.n_samples, self.values.shape[1]))
        filled[self.rows] = self.values
        return filled


class MultipliesColumns(Protocol):
    """What a party has to have where products of its columns are wanted."""

    def columns_to_multiply(self) -> HeldColumns:
        """Return the columns, centred or scaled as the method wants them."""


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
