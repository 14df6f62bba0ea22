"""How a party's columns become numbers of mean 0 and variance 1, also of rows that come later."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flwr_vertical.arrays import AnyArray
from flwr_vertical.errors import DataError
from flwr_vertical.tables import Table
from strategies.linear.design import numeric_matrix
from strategies.linear.prediction.party_model import column_sources


@dataclass(frozen=True)
class ColumnScales:
    """Where columns come from, and what their values are in units of."""

    sources: list[str]  # See `column_sources`
    levels: list[str]  # See `column_sources`
    known_levels: dict[str, list[str]]  # See `column_sources`
    other: dict[str, list[str]]  # See `column_sources`
    centre: AnyArray  # (n_columns,): mean and standard deviation over the rows that take part
    unit: AnyArray  # (n_columns,): mean and standard deviation over the rows that take part


def fit_scales(
    table: Table,
    taken: npt.NDArray[np.bool_],
    party: str,
    encoding: str,
    min_rows: int | None = None,
    channels: int | None = None,
) -> tuple[ColumnScales, AnyArray]:
    """Measure the columns of a table.

    Shapes: taken (n_rows,): which rows take part; returns (n_rows, n_columns): the columns in
    these units, NaN where a cell is missing.
    """
    names, x, origins = numeric_matrix(table, party, encoding, min_rows)
    for j in np.flatnonzero(np.isnan(x[taken]).all(axis=0)):
        raise DataError(
            f"party {party!r}, column {names[j]!r}: no row that takes part has a value; leave the "
            "column out, or align other rows"
        )
    if channels is not None and x.shape[1] % channels == 0:
        pixels = np.moveaxis(x[taken].reshape(-1, channels, x.shape[1] // channels), 1, 0)
        of_channels = pixels.reshape(channels, -1)
        centre, unit = (
            np.repeat(measure(of_channels, axis=1), x.shape[1] // channels)
            for measure in (np.nanmean, np.nanstd)
        )
    else:
        centre, unit = np.nanmean(x[taken], axis=0), np.nanstd(x[taken], axis=0)
    unit[unit == 0] = 1.0  # a constant column says nothing, and stays at 0
    scales = ColumnScales(**column_sources(table, origins), centre=centre, unit=unit)
    return scales, (x - centre) / unit
