"""The server's noise: on sums of the labels, which it holds itself.

The parties' noise hides their columns from the server. Towards everybody else, the parties
included, the coefficients must hide the labels as well, and each party knows its own noise. So the
server adds the full noise to every sum with labels in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags
from flwr_vertical.privacy import fresh_keystream, gaussian_integers
from flwr_vertical.products.noise import VECTORS, PrivateRows

_GRID = 40
"""Binary digits of a standard deviation: noise is in whole numbers of that share of it."""


@dataclass(frozen=True)
class LabelSums:
    """Sums of the labels of one group of rows."""

    with_columns: Array  # (n_columns,): products with each column
    total: float  # Sum, and sum of squares
    square: float  # Sum, and sum of squares
    variances: tuple[float, float, float]  # Of the noise on each of the three


def server_noise(label: str, key: bytes) -> Callable[[float, float], float]:
    """Return what adds noise of a standard deviation to a number."""
    stream = fresh_keystream(label, key)

    def noisy(value: float, sigma: float) -> float:
        unit = sigma * 2.0**-_GRID
        (drawn,) = gaussian_integers(2**_GRID, 1, stream)
        return (round(value / unit) + drawn) * unit

    return noisy


def noisy_label_sums(
    rule: PrivateRows,
    widths: Sequence[int],
    present: Flags,
    with_columns: Array,
    totals: Array,
    squares: Array,
    key: bytes,
) -> list[LabelSums]:
    """Add the server's noise.

    Shapes: present (n_groups, n_parties): whose columns are in the sums of a group; with_columns
    (n_groups, n_columns): as opened, with the parties' noise; totals, squares (n_groups,): of
    labels brought to [-1, 1].
    """
    noisy = server_noise("server labels", key)
    levels = rule.levels(widths, present, 1)[:, VECTORS]
    of_total, of_square = rule.of_vectors(widths, present, 1)
    return [
        LabelSums(
            np.array([noisy(float(value), level) for value in with_columns[g]]),
            noisy(float(totals[g]), float(of_total[g])),
            noisy(float(squares[g]), float(of_square[g])),
            (float(level) ** 2, float(of_total[g]) ** 2, float(of_square[g]) ** 2),
        )
        for g, level in enumerate(levels)
    ]
