"""Generated data sets: tables, what is missing, the truth; and those of the finite-sample parts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.incomplete import drop_blocks, mcar_blocks
from simulations.vfem.missing import logistic_mask, mar_scores


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


MCAR, MAR = "MCAR", "MAR"


def covariance(design: dict[str, Any], cross: float) -> Array:
    """Covariance of all columns: AR(1) within a party, and `cross` from a common factor."""
    sizes = [len(values) for values in design["coefficients"]]
    blocks = np.zeros((sum(sizes), sum(sizes)))
    start = 0
    for size in sizes:
        lag = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        blocks[start : start + size, start : start + size] = design["rho"] ** lag
        start += size
    return (1 - cross) * blocks + cross


def noise_variance(design: dict[str, Any], cross: float = 0.0) -> float:
    """Return the variance of the noise that the preset's R² asks for."""
    beta = np.concatenate([np.asarray(row, dtype=np.float64) for row in design["coefficients"]])
    return noise_deviation(beta, covariance(design, cross), design["r2"]) ** 2


def draw_design(
    design: dict[str, Any],
    *,
    rows: int,
    rates: list[float],
    mechanism: str = MCAR,
    cross: float = 0.0,
    held_out: int = 0,
    seed: int = 0,
) -> Sample:
    """Draw one data set: five parties, normal columns, known coefficients."""
    rng = np.random.default_rng([seed, rows])
    n, by_party = rows + held_out, zip(design["parties"], design["coefficients"], strict=True)
    names = {party: [f"x{j + 1}" for j in range(len(values))] for party, values in by_party}
    beta = np.concatenate([np.asarray(row, dtype=np.float64) for row in design["coefficients"]])
    root = np.linalg.cholesky(covariance(design, cross))
    X = design["mean"] + rng.standard_normal((n, len(beta))) @ root.T
    noise = np.sqrt(noise_variance(design, cross)) * rng.standard_normal(n)
    index = pd.RangeIndex(n)
    labels = pd.Series(design["intercept"] + X @ beta + noise, index=index, name="y")
    frames = make_frames(X, names, index)
    if mechanism == MCAR:
        mask = mcar_blocks(n, rates, seed=seed)
    else:
        first = frames[design["parties"][0]]
        scores = mar_scores(labels, first, design["label_weight"], design["first_weight"])
        mask = logistic_mask(scores, rates, rng)
    scale = by_variable(np.ones(len(beta)), names)
    return Sample(frames, labels, by_variable(beta, names), scale, mask, np.arange(n) >= rows)
