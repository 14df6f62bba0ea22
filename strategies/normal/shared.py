"""Sums over the rows that two parties share, of each one's own columns: what means there are.

Where a party lacks rows by what another one observes, both differ from all rows in the rows that
they share. So sums of each one's columns and of products of two of them are told over these as
well, beside those over all own rows. They are over sets that `ToldRows.admit_pairs` has counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical import Summands, step
from flwr_vertical.arrays import Array, Ring
from flwr_vertical.products.columns import own_moments
from flwr_vertical.products.pairs import PairMoments, PairProductSteps
from flwr_vertical.protocol.arguments import takes_as


class SharedProductSteps(PairProductSteps):
    """A party's half of pairwise moments, and of its own ones over the rows that it shares."""

    @step
    @takes_as(PairProductSteps.open_pairs)
    def open_pairs(self, **arguments: Any) -> Summands:  # type: ignore[override]
        """Send what opens pairwise moments, and own moments over the rows that others hold, too.

        Message: see `PairProductSteps.open_pairs`; returns as there; summed also ``shared``
        (n_parties, n_numbers), the bits of sums and products of the own columns over the rows that
        each party holds, too; 0 of those apart from that party.
        """
        told = super().open_pairs(**arguments)
        columns, widths = self._columns(), arguments["widths"]
        place = arguments["names"].index(self.name)
        rows = np.asarray(arguments["held"]) & np.asarray(arguments["taken"])[:, None]
        places, bits = _places(widths), np.zeros((len(widths), _places(widths)[-1]), np.uint64)
        for k, apart in enumerate(told.public["apart"]):
            withheld = told.public["withheld"] | apart
            if k != place and not withheld.all():
                found = own_moments(columns, np.where(rows[:, k], 0, -1), withheld)
                numbers = _flat(found["sums"][0], found["products"][0])
                bits[k, places[place] : places[place + 1]] = numbers.view(np.uint64)
        bits += self.bound_to("shared moments", bits.shape, arguments)
        modular = (*told.modular, "shared")
        return Summands({**told.values, "shared": bits}, told.public, modular=modular)


@dataclass(frozen=True)
class SharedMoments:
    """Sums of a party's columns, and of products of two, over the rows that it shares with one."""

    # By party and other party, (n_own,) and (n_own, n_own); 0 of columns apart from that party
    sums: Mapping[tuple[int, int], Array]
    products: Mapping[tuple[int, int], Array]

    @classmethod
    def of(cls, moments: PairMoments, widths: Mapping[str, int]) -> "SharedMoments":
        """Read what `SharedProductSteps.open_pairs` told."""
        bits: Ring = np.ascontiguousarray(moments.summed["shared"]).view(np.uint64)
        found, places = bits.view(np.float64), _places(list(widths.values()))
        sums, products = {}, {}
        for k, width in enumerate(widths.values()):
            upper = np.triu_indices(width)
            for j, numbers in enumerate(found[:, places[k] : places[k + 1]]):
                square = np.zeros((width, width))
                square[upper] = numbers[width:]
                sums[k, j] = numbers[:width]
                products[k, j] = square + np.triu(square, 1).T
        return cls(sums, products)


def _places(widths: list[int]) -> list[int]:
    """Return where each party's numbers start, and where the last one's end."""
    return [0, *np.cumsum([n + n * (n + 1) // 2 for n in widths]).tolist()]


def _flat(sums: Array, products: Array) -> Array:
    return np.concatenate([sums, products[np.triu_indices(len(sums))]])
