"""What a party has: its columns as its networks see them, its consent, what it keeps of a model."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from flwr_vertical import Party, StepGroup
from flwr_vertical.arrays import AnyArray, Indices, Numbers
from flwr_vertical.node.kept import kept, part_of_fit
from flwr_vertical.policy.record import allows
from flwr_vertical.protocol.arguments import DISTINCT, OWN, Is, Shape, Within
from strategies.neural.hardware import device_of, to_numpy
from strategies.neural.model import ColumnScales, NeuralPart, fit_scales
from strategies.neural.networks import NetworkSizes, dtype_of

EMBEDDINGS, LONE_EMBEDDINGS = "embeddings", "lone-embeddings"
"""Exchanges to which a node must agree: sums of embeddings by sample, and of samples that it alone
holds, which such a sum does not hide."""

Batch: TypeAlias = Annotated[Indices, Shape(None), Within(0, "n_samples - 1"), DISTINCT]
"""Aligned rows, each once at most."""

Seed: TypeAlias = Annotated[int, Within(0, 2**62 - 1)]
ModelName: TypeAlias = Annotated[str, Within(32, 32)]
OwnRows: TypeAlias = Annotated[Numbers, OWN, Shape(None, None)]
"""Numbers of those rows of a batch that a party holds."""

Sizes: TypeAlias = Annotated[str, Is("network_sizes")]
Precision: TypeAlias = Annotated[str, Is("precision")]
Device: TypeAlias = Annotated[str, Is("device")]
"""What repeats a setting, of which nodes and server have the same."""


class HeldRows(NamedTuple):
    """The rows of a batch that a party holds."""

    x: Tensor  # (n_held, n_columns): standardised columns, 0 where a cell is missing
    known: Tensor  # (n_held, n_columns): 1 where the cell is there
    places: Tensor  # (n_held,): where in the batch they stand


@dataclass(frozen=True)
class PartyBlock:
    """What a party holds of aligned samples, where all parties' columns lie in one process."""

    x: Tensor  # (n_held, n_columns): standardised columns, 0 where a cell is missing
    known: Tensor  # (n_held, n_columns): 1 where the cell is there
    row: Tensor  # (n_samples,): where in `x` each sample is, -1 where the party lacks it

    def select(self, batch: Tensor) -> HeldRows:
        """Find what the party holds of a batch of samples."""
        rows = self.row[batch]
        places = torch.nonzero(rows >= 0)[:, 0]
        held = rows[places]
        return HeldRows(self.x[held], self.known[held], places)

    def to(self, device: torch.device) -> Self:
        """Return the same on a device."""
        moved = (each.to(device) for each in (self.x, self.known, self.row))
        return type(self)(*moved)


class KeptPart(StepGroup):
    """The part of a model that an earlier run left here, in a run that predicts with it."""

    party: Party
    kind: ClassVar[type[NeuralPart]]

    @property
    def part(self) -> NeuralPart | None:
        """The part; None in a run that trains."""
        wanted = self.state.get("model")
        if wanted is None:
            return None
        return part_of_fit(self.party, self.kind, str(wanted))


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
        return dtype_of(self.state["precision"])

    @property
    def taking_part(self) -> Tensor:
        """The rows that take part, shape (n_rows, n_columns): 0 where a cell is missing."""
        own = self._matrix[0]
        return own[torch.from_numpy(self.party.positions >= 0).to(own.device)]

    @property
    def device(self) -> torch.device:
        """Where this node computes."""
        return device_of(str(self.state.get("device", "cpu")))

    def held(self, batch: object) -> HeldRows:
        """Find what the party holds of a batch of aligned rows."""
        places, rows = (torch.from_numpy(found) for found in self.party.rows_of(batch))
        x, known = self._matrix
        rows = rows.to(x.device)
        return HeldRows(x[rows], known[rows], places.to(x.device))

    @property
    def scales(self) -> ColumnScales:
        """What the columns are in units of, in a run that trains."""
        return self._fitted[0]

    @kept("own-scales")
    def _fitted(self) -> tuple[ColumnScales, AnyArray]:
        taken = self.party.positions >= 0
        least = self.party.policy.min_rows
        channels = self.state.get("image-channels")  # None of a table
        return fit_scales(self.party.table, taken, self.name, least, channels)

    @kept("own-columns")
    def _matrix(self) -> tuple[Tensor, Tensor]:
        part = self.other(KeptPart).part
        own = self._fitted[1] if part is None else part.features(self.party.table, self.name)
        known, kind = ~np.isnan(own), self.dtype
        return (
            torch.from_numpy(np.where(known, own, 0.0)).to(self.device, kind),
            torch.from_numpy(known).to(self.device, kind),
        )


class NetworkSteps(StepGroup):
    """What the groups share that have a party's networks; the methods' own steps are theirs."""

    party: Party
    opened: ClassVar[str]  # What nodes agree to open, in words
    sizes_type: ClassVar[type[NetworkSizes]]

    def _consent(self) -> dict[str, Any]:
        """Refuse unless the node agrees to embeddings; say whether it does to lone ones.

        However often a row is encoded, it tells no more than it holds: that is what the ledger has.
        """
        self.party.open_exchange(EMBEDDINGS, self.opened)
        return {"lone": allows(self.party.policy.exchanges, LONE_EMBEDDINGS)}

    def _note(self, networks: str, precision: str, device: str) -> None:
        """Note settings of the run."""
        self.state["networks"], self.state["precision"] = networks, precision
        self.state["device"] = device
        if (image := self.sizes_type.from_text(networks).image_of(self.name)) is not None:
            self.state["image-channels"] = image.channels

    def _take_up(self, model: str, device: str) -> NeuralPart:
        """Return the part that an earlier run left here, and note what it says of the run."""
        self.state["model"], self.state["device"] = model, device
        part = self.other(KeptPart).part
        assert part is not None
        self.state["precision"] = part.precision
        return part


def scatter(values: Tensor, places: Tensor, n_rows: int) -> AnyArray:
    """Put rows at their places, among zeros; shape (n_rows, ...)."""
    full = values.new_zeros((n_rows, *values.shape[1:]))
    return to_numpy(full.index_copy(0, places, values))
