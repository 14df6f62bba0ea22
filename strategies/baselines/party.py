"""The party half of the baselines: fill with one value per column, from the own table alone."""

import numpy as np

from flwr_vertical import Summands, step
from flwr_vertical.arrays import Array
from flwr_vertical.errors import DataError
from flwr_vertical.tables import is_numeric
from strategies.common.imputing_party import ImputingParty


class ConstantParty(ImputingParty):
    """Fills every missing cell of a column with the same value; nothing but counts leaves it."""

    @step
    def fill(self, statistic: str, complete_blocks: bool) -> Summands:
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
        cells = {"cells-imputed": int(missing.sum())}
        return Summands({}, cells | self.accuracy(frame))


def constant(observed: Array, statistic: str) -> float:
    """Return the constant that a statistic gives.

    Shapes: observed (n_observed,): at least one value.
    """
    if statistic == "most-frequent":
        values, counts = np.unique(observed, return_counts=True)
        return float(values[counts.argmax()])
    if statistic == "mean":
        return float(observed.mean())
    return float(observed.min() if statistic == "min" else observed.max())
