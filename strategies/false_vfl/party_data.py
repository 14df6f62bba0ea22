"""A party's own columns as its networks see them: standardised, by own row, on tensors."""

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup
from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import ConfigError
from strategies.common.deep_part import DeepPart
from strategies.false_vfl.hardware import device_of
from strategies.false_vfl.model import FalseVFLPart
from strategies.false_vfl.scales import ColumnScales, fit_scales


class Held(NamedTuple):
    """The rows of a batch that a party holds."""

    x: Tensor  # (n_held, n_columns): standardised columns, 0 where a cell is missing
    known: Tensor  # (n_held, n_columns): 1 where the cell is there
    places: Tensor  # (n_held,): where in the batch they stand


class OwnColumns(StepGroup):
    """The table as numbers, each column at mean 0 and variance 1 over the rows that took part.

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

    @property
    def everything(self) -> Tensor:
        """All own rows, shape (n_own, n_columns): standardised, 0 where a cell is missing."""
        return self._matrix[0]

    @property
    def device(self) -> torch.device:
        """Where this node computes."""
        return device_of(str(self.state.get("device", "cpu")))

    def held(self, batch: object) -> Held:
        """Find what the party holds of a batch of aligned rows."""
        places, rows = (torch.from_numpy(found) for found in self.party.rows_of(batch))
        x, known = self._matrix
        rows = rows.to(x.device)
        return Held(x[rows], known[rows], places.to(x.device))

    @property
    def scales(self) -> ColumnScales:
        """What the columns are in units of, in a run that trains."""
        return self._fitted[0]

    @property
    def _fitted(self) -> tuple[ColumnScales, AnyArray]:
        if "own-scales" not in self.cache:
            taken = self.party.positions >= 0
            encoding = str(self.state["encoding"])
            least = self.party.policy.min_rows
            channels = self.state.get("image-channels")  # None of a table
            made = fit_scales(self.party.table, taken, self.name, encoding, least, channels)
            self.cache["own-scales"] = made
        found: tuple[ColumnScales, AnyArray] = self.cache["own-scales"]
        return found

    @property
    def _matrix(self) -> tuple[Tensor, Tensor]:
        if "own-columns" not in self.cache:
            part = self.other(KeptPart).part
            own = self._fitted[1] if part is None else part.features(self.party.table, self.name)
            known, kind = ~np.isnan(own), self.dtype
            self.cache["own-columns"] = (
                torch.from_numpy(np.where(known, own, 0.0)).to(self.device, kind),
                torch.from_numpy(known).to(self.device, kind),
            )
        matrix: tuple[Tensor, Tensor] = self.cache["own-columns"]
        return matrix


class KeptPart(StepGroup):
    """The part of a model that an earlier run left here, in a run that predicts with it."""

    party: Party
    kind: ClassVar[type[DeepPart]] = FalseVFLPart

    @property
    def part(self) -> DeepPart | None:
        """The part; None in a run that trains."""
        wanted = self.state.get("model")
        if wanted is None:
            return None
        if "kept-part" not in self.cache:
            found = self.party.load_model(self.kind)
            if found is None:
                raise ConfigError(
                    f"party {self.name!r} is to predict with a model, but no earlier run is named; "
                    "name the run of the fit as 'fitted'"
                )
            if found.model != wanted:
                raise ConfigError(
                    f"party {self.name!r} keeps its part of model {found.model[:8]}, but the "
                    f"server asks for model {str(wanted)[:8]}; name the run of that fit"
                )
            self.cache["kept-part"] = found
        kept: DeepPart = self.cache["kept-part"]
        return kept
