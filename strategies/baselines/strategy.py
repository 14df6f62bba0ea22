"""MEAN, MIN, MAX and most-frequent imputation: what other platforms offer, on the same interface.

One round after greeting and alignment, two with fitted donors; each party uses its own table
alone.
"""

from typing import ClassVar

import numpy as np

from flwr_vertical import Federation, Result, Strategy
from flwr_vertical.alignment import Alignment
from flwr_vertical.results import Progress
from flwr_vertical.settings import setting
from strategies.baselines.party import ConstantParty


class ConstantImputation(Strategy):
    """Fill every missing cell of a column with one value of the column."""

    complete_blocks: bool = setting(True, "Also impute samples of which a party has no row.")

    statistic: ClassVar[str]
    party = ConstantParty
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
        result.party_metrics = {
            name: {key: float(value) for key, value in reply.items()}
            for name, reply in replies.items()
        }
        result.metrics["cells-imputed"] = float(
            sum(reply["cells-imputed"] for reply in replies.values())
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
