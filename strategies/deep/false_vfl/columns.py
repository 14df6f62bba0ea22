"""A party's own columns as its networks see them: standardised, by own row, on tensors."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup
from flwr_vertical.errors import DataError
from strategies.regression.design import numeric_matrix


class Held(NamedTuple):
    """The rows of a batch that a party holds.

    Parameters
    ----------
    x : Tensor of shape (n_held, n_columns)
        Standardised columns, 0 where a cell is missing.
    known : Tensor of shape (n_held, n_columns)
        1 where the cell is there.
    places : Tensor of shape (n_held,), int64
        Where in the batch they stand.
    """

    x: Tensor
    known: Tensor
    places: Tensor


class OwnColumns(StepGroup):
    """The table as numbers, each column at mean 0 and variance 1 over the aligned rows held.

    A missing cell is 0 (the column's mean) for the encoder and has no part in the likelihood.
    """

    party: Party

    @property
    def n_columns(self) -> int:
        """Number of columns after encoding."""
        return int(self._matrix[0].shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """What all networks of the run compute in."""
        return torch.float64 if self.state["precision"] == "float64" else torch.float32

    def held(self, batch: object) -> Held:
        """Find what the party holds of a batch of aligned rows."""
        places, rows = self.party.rows_of(batch)
        x, known = self._matrix
        return Held(x[rows], known[rows], torch.from_numpy(places))

    @property
    def _matrix(self) -> tuple[Tensor, Tensor]:
        if "own-columns" not in self.cache:
            encoding = str(self.state["encoding"])
            names, x = numeric_matrix(self.party.table, self.name, encoding)
            taken = self.party.positions >= 0
            known = ~np.isnan(x)
            for j, name in enumerate(names):
                own = x[taken & known[:, j], j]
                if not own.size:
                    raise DataError(
                        f"party {self.name!r}, column {name!r}: no row that takes part has a "
                        "value; leave the column out, or align other rows"
                    )
                deviation = own.std()
                # A constant column says nothing; it stays at 0 and costs one term of the bound.
                x[:, j] = (x[:, j] - own.mean()) / (deviation if deviation > 0 else 1.0)
            kind = self.dtype
            self.cache["own-columns"] = (
                torch.from_numpy(np.where(known, x, 0.0)).to(kind),
                torch.from_numpy(known).to(kind),
            )
        matrix: tuple[Tensor, Tensor] = self.cache["own-columns"]
        return matrix
