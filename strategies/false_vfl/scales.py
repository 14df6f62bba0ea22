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
    """Where columns come from, and what their values are in units of.

    Parameters
    ----------
    sources, levels, known_levels, other
        See `column_sources`.
    centre, unit : numpy.ndarray of shape (n_columns,)
        Mean and standard deviation over the rows that take part.
    """

    sources: list[str]
    levels: list[str]
    known_levels: dict[str, list[str]]
    other: dict[str, list[str]]
    centre: AnyArray
    unit: AnyArray


def fit_scales(
    table: Table,
    taken: npt.NDArray[np.bool_],
    party: str,
    encoding: str,
    min_rows: int | None = None,
    channels: int | None = None,
) -> tuple[ColumnScales, AnyArray]:
    """Measure the columns of a table.

    Parameters
    ----------
    table : Table
        The party's own.
    taken : numpy.ndarray of shape (n_rows,), bool
        Which rows take part.
    party : str
        Its name, for errors.
    encoding, min_rows
        See `numeric_matrix`.
    channels : int, optional
        Of an image, whose pixels have one mean and one deviation for each channel: a pixel that
        is the same in nearly all images would else have values of hundreds of deviations.

    Returns
    -------
    ColumnScales
    numpy.ndarray of shape (n_rows, n_columns)
        The columns in these units, NaN where a cell is missing.

    Raises
    ------
    DataError
        If a column cannot be encoded, or has no value among the rows that take part.
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
