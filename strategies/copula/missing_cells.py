"""Cells that are missing, filled from the noisy margin, so that filling them spends nothing.

The mean of the values themselves moves with each of them, and every filled cell with it: replacing
one value would turn the comparisons of all filled cells round and move all of them from one count
to another, far more than is paid for. So the margin is made of the observed values; what fills the
cells, and the share that it has, follow from the margin and from which cells are missing.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.tables import Kind, is_numeric
from strategies.copula.margins import Margin

# Of a tree without a range the noise puts a few values far out: no mean without the ends.
_MIDDLE = 0.05 + 0.9 * (np.arange(1000) + 0.5) / 1000


def fill_in(margins: list[Margin], values: Array, kinds: Mapping[str, Kind]) -> Array:
    """Fill missing cells, and put them into the margins.

    Shapes: values (n_samples, n_columns): values, or their places among the levels of the margin;
    NaN = missing; returns (n_samples, n_columns).
    """
    whole = values.copy()
    for j, kind in enumerate(kinds.values()):
        missing, margin = np.isnan(values[:, j]), margins[j]
        if not missing.any():
            continue
        value = likely_value(margin, kind)
        whole[missing, j] = value
        filled = value if is_numeric(kind) else float(margin.values[int(value)])
        margins[j] = with_filled(margin, filled, float(missing.mean()))
    return whole


def likely_value(margin: Margin, kind: Kind) -> float:
    """Return what fills a cell: the mean of the middle nine tenths, or the place of a level."""
    if not is_numeric(kind):
        return float(np.diff(margin.cumulative, prepend=0.0).argmax())
    mean = float(margin.quantile(_MIDDLE).mean())
    if margin.step:
        return float(np.rint(mean / margin.step) * margin.step)
    return float(np.rint(mean)) if kind is Kind.COUNT or margin.discrete else mean


def with_filled(margin: Margin, value: float, share: float) -> Margin:
    """Return a margin of which a share of all cells has one value more."""
    rest = 1.0 - share
    if margin.discrete:
        cumulative = rest * margin.cumulative + share * (margin.values >= value)
        cumulative[-1] = 1.0
        return replace(margin, cumulative=cumulative)
    first = int(np.searchsorted(margin.values, value, "left"))
    after = int(np.searchsorted(margin.values, value, "right"))
    if first == after:
        low = high = float(np.interp(value, margin.values, margin.cumulative))
    else:  # the margin has the value already, as a point mass or as the end of a cell
        low, high = float(margin.cumulative[first]), float(margin.cumulative[after - 1])
    ends = np.array([rest * low, rest * high + share])
    atoms = [
        rest * atom + share * (atom >= high if atom[0] < atom[1] else atom > high)
        for atom in margin.atoms
        if not (low <= atom[0] and atom[1] <= high)  # it is part of the new one
    ]
    return replace(
        margin,
        values=np.concatenate([margin.values[:first], [value, value], margin.values[after:]]),
        cumulative=np.concatenate(
            [rest * margin.cumulative[:first], ends, rest * margin.cumulative[after:] + share]
        ),
        atoms=np.array(sorted([*map(tuple, atoms), tuple(ends)])),
    )
