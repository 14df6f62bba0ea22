"""The party half of the baselines: fill with one value per column, from the own table alone.

MEAN, MIN, MAX and most-frequent imputation: what other platforms offer, on the same interface.

One round after greeting and alignment, two with fitted donors; each party uses its own table
alone.
"""

from typing import Annotated, ClassVar

import numpy as np

from flwr_vertical import Alignment, Federation, Progress, Result, Strategy, Summands, setting, step
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from flwr_vertical.protocol.arguments import Is, OneOf
from flwr_vertical.protocol.declaration import FACTS, Maybe, Protocol, Round
from flwr_vertical.tables import is_numeric
from strategies.common.imputing_party import ImputingParty, numbers_told


class ConstantParty(ImputingParty):
    """Fills every missing cell of a column with the same value; nothing but counts leaves it."""

    @step
    def fill(
        self,
        statistic: Annotated[str, OneOf(("mean", "min", "max", "most-frequent"))],
        complete_blocks: Annotated[bool, Is("complete_blocks")],
    ) -> Summands:
        """Impute and write the table; tell how many cells were imputed.

        With fitted donors it first says, into a sum, which rows are donors here: a donor of which
        this party has no row is not a new sample.
        """
        if self.fitted is not None and "donors" not in self.state:
            return Summands({"donor": self.is_donor.view(np.uint8)})
        source = self.codes if self.fitted is None else self.codes[self.is_donor]
        filled = np.empty(self.codes.shape[1])
        for j, kind in enumerate(self.table.kinds.values()):
            observed = source[~np.isnan(source[:, j]), j]
            if not observed.size:
                raise DataError(
                    f"party {self.name!r}, column {self.table.columns[j]!r}: no row that takes "
                    "part has a value; leave the column out, or align other rows"
                )
            # The mean, least and largest of unordered levels mean nothing: their mode stands in.
            filled[j] = constant(observed, statistic if is_numeric(kind) else "most-frequent")
        missing = self.missing_cells(complete_blocks)
        frame = self.write(np.where(missing, filled, self.codes), complete_blocks)
        cells = {"cells_imputed": int(missing.sum())}
        return Summands({}, cells | self.accuracy(frame))


def constant(observed: Array, statistic: str) -> float:
    """Return the constant that a statistic gives of at least one value."""
    if statistic == "most-frequent":
        values, counts = np.unique(observed, return_counts=True)
        return float(values[counts.argmax()])
    if statistic == "mean":
        return float(observed.mean())
    return float(observed.min() if statistic == "min" else observed.max())


class ConstantImputation(Strategy):
    """Fill every missing cell of a column with one value of the column."""

    complete_blocks: bool = setting(True, "Also impute samples of which a party has no row.")

    statistic: ClassVar[str]
    party = ConstantParty
    protocol = Protocol(
        Round(
            "fill",
            "how many cells it imputed; with fitted donors, which rows are donors",
            tells=FACTS,
        ),
        Maybe(Round("fill", "how many cells it imputed", tells=FACTS, writes=("donors",))),
    )
    disclosure = (
        ("server", "how many cells each party imputed"),
        ("server", "with fitted donors: how many parties have each of them (a sum)"),
        ("every party", "with fitted donors: which rows are donors at some party"),
        ("nobody", "anything about a value"),
    )

    def run(
        self, federation: Federation, alignment: Alignment, result: Result, progress: Progress
    ) -> None:
        """Have every party fill its own table."""
        progress.total = 1
        arguments = {"statistic": self.statistic, "complete_blocks": self.complete_blocks}
        total = federation.sum("fill", arguments)
        if "donor" in total.values:
            for name in federation.parties:
                federation.update(name, {"donors": np.flatnonzero(total["donor"])})
            total = federation.sum("fill", arguments)
        replies = total.public
        progress.step("fill")
        result.party_metrics = numbers_told(replies)
        result.metrics["cells_imputed"] = float(
            sum(reply["cells_imputed"] for reply in replies.values())
        )


class Mean(ConstantImputation):
    """Fill with the column's mean (columns of levels: with the most frequent one)."""

    name = "mean"
    statistic = "mean"


class Min(ConstantImputation):
    """Fill with the column's least value (columns of levels: with the most frequent one)."""

    name = "min"
    statistic = "min"


class Max(ConstantImputation):
    """Fill with the column's largest value (columns of levels: with the most frequent one)."""

    name = "max"
    statistic = "max"


class MostFrequent(ConstantImputation):
    """Fill with the column's most frequent value."""

    name = "most-frequent"
    statistic = "most-frequent"
