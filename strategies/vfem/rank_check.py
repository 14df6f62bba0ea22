"""The check that no party can make alone: columns of different parties are uncorrelated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from flwr_vertical.arrays import Array
from flwr_vertical.errors import ProtocolError
from flwr_vertical.products.sketches import MAX_NOISE

Pair = tuple[str, str]

MAX_ROOT_MEAN_SQUARE = 0.1
MAX_CORRELATION = 0.3
"""Rank correlations between parties beyond these break the assumption of VFEM."""
_DEVIATIONS = 5.0
_MEAN_SQUARE_DEVIATIONS = 4.0


class LargestCorrelation(NamedTuple):
    """The rank correlation that is largest in absolute value, and whose columns it is between."""

    value: float
    party_a: str
    column_a: str
    party_b: str
    column_b: str


@dataclass(frozen=True, eq=False)
class RankCheck:
    """How correlated columns of different parties are."""

    # Of all checked rank correlations, the noise taken out, at least 0; NaN if none was checked
    root_mean_square: float
    # The largest checked one, noise included; None if none was checked
    largest: LargestCorrelation | None
    n_pairs_checked: int  # Number of pairs of columns
    # What is wrong, what it costs and what to do, if the assumption of VFEM is far off
    warning: str | None
    # (str, str): the rank correlations; NaN where the noise exceeds `MAX_NOISE`
    by_pair: dict[Pair, Array]
    noise: dict[Pair, float]  # (str, str): their standard deviations if columns are independent
    columns: dict[str, list[str]]  # Names of the columns of each party

    def to_frame(self) -> pd.DataFrame:
        """Return one row per pair of columns; NaN where the noise is too large."""
        names = ["party_a", "column_a", "party_b", "column_b", "rank_correlation", "noise"]
        rows = [
            (a, column_a, b, column_b, float(values[i, j]), self.noise[a, b])
            for (a, b), values in self.by_pair.items()
            for i, column_a in enumerate(self.columns[a])
            for j, column_b in enumerate(self.columns[b])
        ]
        return pd.DataFrame(rows, columns=names)


def summarise_rank_correlations(
    by_pair: Mapping[Pair, Array],
    noise: Mapping[Pair, float],
    columns: Mapping[str, list[str]],
) -> RankCheck:
    """Say whether columns of different parties are uncorrelated, as VFEM assumes.

    It warns if the root mean square exceeds `MAX_ROOT_MEAN_SQUARE`, or a rank correlation exceeds
    `MAX_CORRELATION`, and noise alone does not explain it.

    Shapes: by_pair (str, str): `rank_correlations` of each pair of parties; noise (str, str):
    `rank_correlation_noise` of each pair of parties.
    """
    kept: dict[Pair, Array] = {}
    found: list[tuple[LargestCorrelation, float]] = []  # the largest of each pair of parties
    n_checked, excess, spread = 0, 0.0, 0.0
    for (a, b), values in by_pair.items():
        if values.shape != (len(columns[a]), len(columns[b])):
            raise ProtocolError(
                f"the rank correlations of parties {a!r} and {b!r} must have shape "
                f"{(len(columns[a]), len(columns[b]))}, got {values.shape}"
            )
        deviation = noise[a, b]
        clear = deviation <= MAX_NOISE
        kept[a, b] = values.copy() if clear else np.full_like(values, np.nan)
        if not clear or not values.size:
            continue
        n_checked += values.size
        excess += float(np.sum(np.square(values) - deviation**2))
        # Columns of one party may be alike, and then all of these squares are one.
        spread += 2.0 * (values.size * deviation**2) ** 2
        i, j = divmod(int(np.argmax(np.abs(values))), values.shape[1])
        entry = LargestCorrelation(float(values[i, j]), a, columns[a][i], b, columns[b][j])
        found.append((entry, deviation))
    found.sort(key=lambda item: -abs(item[0].value))
    mean_square = excess / n_checked if n_checked else float("nan")
    root = float(np.sqrt(max(mean_square, 0.0))) if n_checked else float("nan")
    sure = [(e, s) for e, s in found if abs(e.value) > max(MAX_CORRELATION, _DEVIATIONS * s)]
    many = root > MAX_ROOT_MEAN_SQUARE and excess > _MEAN_SQUARE_DEVIATIONS * np.sqrt(spread)
    warning = _warning(*(sure or found)[0], root, n_checked) if sure or many else None
    largest = found[0][0] if found else None
    return RankCheck(
        root,
        largest,
        n_checked,
        warning,
        kept,
        dict(noise),
        {k: list(v) for k, v in columns.items()},
    )


def _warning(entry: LargestCorrelation, noise: float, root: float, n_checked: int) -> str:
    return (
        "VFEM assumes that columns of different parties are uncorrelated, which is far off here: "
        f"the rank correlation of column {entry.column_a!r} of party {entry.party_a!r} with column "
        f"{entry.column_b!r} of party {entry.party_b!r} is {entry.value:.2f} (noise {noise:.2f}), "
        f"and the root mean square over {n_checked} pairs of columns is {root:.2f}. Where blocks "
        "are missing, coefficients are biased, and standard errors by 'expected' are too small or "
        "too large: use 'gram' for standard errors, and compare the coefficients with a fit on "
        "the samples that all parties hold, or leave out one of two correlated columns"
    )
