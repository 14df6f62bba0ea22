"""What a fit of the joint normal model leaves: at the server its moments, at a party its units."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flwr_vertical import Model
from flwr_vertical.arrays import Array, Flags
from flwr_vertical.errors import DataError
from strategies.normal.equations import JointModel
from strategies.normal.filling import OwnModel

_STRATEGY = "joint-normal"


@dataclass
class JointNormalModel(Model):
    """What the server keeps: a normal distribution of all columns, in each party's own units."""

    strategy: ClassVar[str] = _STRATEGY
    parties: list[str]
    widths: list[int]  # Columns of each party
    mean: Array  # (n_columns,)
    covariance: Array  # (n_columns, n_columns)
    shrinkage: float
    n_rows: float
    n_own: float
    apart: Flags  # (n_columns, n_parties)
    withheld: Flags  # (n_columns,)

    @classmethod
    def of(
        cls, parties: Sequence[str], widths: Sequence[int], model: JointModel
    ) -> "JointNormalModel":
        """Write down what was fitted."""
        of_a_run = "unshown", "n_alone"
        moments = {name: value for name, value in vars(model).items() if name not in of_a_run}
        return cls(list(parties), [int(width) for width in widths], **moments)

    @property
    def digest(self) -> str:
        """What names the model at its parties."""
        parts = [repr((self.parties, self.widths)).encode()]
        parts += [np.asarray(x, dtype="<f8").tobytes() for x in (self.mean, self.covariance)]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:32]

    def joint(self, parties: Sequence[str]) -> JointModel:
        """Return the distribution of the columns of some of the parties, in their order."""
        ends = np.cumsum(self.widths)
        places = [self.parties.index(name) for name in parties]
        columns = np.concatenate([np.arange(ends[k] - self.widths[k], ends[k]) for k in places])
        return JointModel(
            self.mean[columns],
            self.covariance[np.ix_(columns, columns)],
            self.shrinkage,
            self.n_rows,
            self.n_own,
            np.asarray(self.apart, dtype=bool)[columns][:, places],
            np.asarray(self.withheld, dtype=bool)[columns],
        )


@dataclass
class JointNormalPart(Model):
    """What a party keeps of the fit: no number of another party."""

    strategy: ClassVar[str] = _STRATEGY
    model: str  # Digest of the server's
    columns: list[str]
    center: Array  # (n_columns,), (n_columns,): rough units of the columns of the model
    unit: Array
    mean: Array  # See `OwnModel`
    covariance: Array
    shown: Array
    spread: Array

    @property
    def own(self) -> OwnModel:
        """The normal model of the own columns."""
        return OwnModel(self.mean, self.covariance, self.shown, self.spread)

    def check(self, columns: Sequence[str], width: int, party: str) -> None:
        """Refuse a table with other columns."""
        if list(columns) != self.columns or width != len(self.mean):
            raise DataError(
                f"party {party!r}: the fit had columns {self.columns}, the new rows have "
                f"{list(columns)}; they must be the same, of the same kinds, in the same order"
            )
