"""What a run leaves: a part at each party with its columns' scales, and the server's own."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from torch import nn

from flwr_vertical import Model, Table
from flwr_vertical.arrays import AnyArray, Flags
from flwr_vertical.errors import DataError
from strategies.linear.design import numeric_matrix
from strategies.linear.prediction.party_model import column_sources, fitted_features
from strategies.neural.networks import NetworkSizes, Weights, precision_of, to_arrays


@dataclass(frozen=True)
class ColumnScales:
    """Where columns come from, and what their values are in units of; fields of `NeuralPart`."""

    sources: list[str]
    levels: list[str]
    known_levels: dict[str, list[str]]
    other: dict[str, list[str]]
    centre: AnyArray
    unit: AnyArray


def fit_scales(
    table: Table, taken: Flags, party: str, min_rows: int | None = None, channels: int | None = None
) -> tuple[ColumnScales, AnyArray]:
    """Measure the columns of a table; pixels of an image's channel have one unit.

    Shapes: taken (n_rows,): which rows take part; returns (n_rows, n_columns): the columns in
    these units, NaN where a cell is missing.
    """
    names, x, origins = numeric_matrix(table, party, min_rows)
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


@dataclass
class NeuralPart(Model):
    """What a party keeps: its networks, and how its columns become what they see."""

    model: str  # Which model it belongs to: the name by which the server calls it
    networks: str  # `NetworkSizes` as text
    precision: str  # Of the fit
    # sources, levels, known_levels, other: Where the columns come from: see `column_sources`
    sources: list[str]
    levels: list[str]
    known_levels: dict[str, list[str]]
    other: dict[str, list[str]]
    centre: AnyArray  # (n_columns,): mean and standard deviation over the rows that took part
    unit: AnyArray  # (n_columns,): mean and standard deviation over the rows that took part
    weights: Weights

    def features(self, table: Table, party: str) -> AnyArray:
        """Return the columns of a table as the networks see them, NaN where a cell is missing."""
        of = self.sources, self.levels, self.known_levels, self.other
        own = fitted_features(table, *of, party)
        return np.asarray((own - self.centre) / self.unit)

    @classmethod
    def of(
        cls, model: str, sizes: NetworkSizes, net: nn.Module, scales: ColumnScales, **more: Any
    ) -> Self:
        """Write a party's networks and scales down, and what else the method keeps."""
        return cls(
            model=model,
            networks=sizes.to_text(),
            precision="mixed" if sizes.mixed else precision_of(net),
            **vars(scales),
            weights=to_arrays(net),
            **more,
        )


@dataclass
class NeuralModel(Model):
    """The server's networks; it has no party's."""

    name: str  # Names the model at the parties
    networks: str  # `NetworkSizes` as text
    precision: str  # Of the fit
    parties: list[str]  # Parties of the fit
    classes: list[float]  # Labels of the classes; empty for a regression
    centre: float  # What standardised labels are in units of
    unit: float  # What standardised labels are in units of
    head: Weights  # Of the discriminator
    prediction_rows: int  # Samples predicted at once
