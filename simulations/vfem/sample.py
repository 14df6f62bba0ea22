"""A generated data set: complete tables, what is missing of them, and the truth."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.incomplete import drop_blocks


@dataclass(frozen=True)
class Sample:
    """Data of a linear model, split by parties."""

    complete: dict[str, pd.DataFrame]  # Tables on a common index, nothing missing
    labels: "pd.Series[float]"  # Of every row, on the same index
    truth: "pd.Series[float]"  # Coefficients, index (party, variable)
    scale: "pd.Series[float]"  # Standard deviation of each column, same index
    mask: Flags  # True where a block is missing
    held_out: Flags  # Rows whose label the methods do not see

    @property
    def parties(self) -> dict[str, pd.DataFrame]:
        """The tables as the parties hold them."""
        return drop_blocks(self.complete, self.mask)

    @property
    def seen_labels(self) -> "pd.Series[float]":
        """The labels as the methods see them: NaN where held out."""
        return self.labels.mask(self.held_out)

    @property
    def complete_cases(self) -> int:
        """Rows with label of which no block is missing."""
        return int((~self.mask.any(axis=1) & ~self.held_out).sum())


def make_frames(
    X: Array, names: dict[str, list[str]], index: "pd.Index[int]"
) -> dict[str, pd.DataFrame]:
    """Split the columns of `X` by party."""
    parts = np.split(X, np.cumsum([len(columns) for columns in names.values()])[:-1], axis=1)
    return {
        party: pd.DataFrame(own, index=index, columns=pd.Index(columns))
        for (party, columns), own in zip(names.items(), parts, strict=True)
    }


def by_variable(values: npt.ArrayLike, names: dict[str, list[str]]) -> "pd.Series[float]":
    """Return a Series with index (party, variable)."""
    keys = [(party, name) for party, columns in names.items() for name in columns]
    index = pd.MultiIndex.from_tuples(keys, names=["party", "variable"])
    return pd.Series(np.asarray(values, dtype=np.float64), index=index)


def noise_deviation(coefficients: Array, covariance: Array, r2: float) -> float:
    """Return the noise's standard deviation that leaves the columns a share `r2` to explain."""
    signal = float(coefficients @ covariance @ coefficients)
    return float(np.sqrt(signal * (1 - r2) / r2))
