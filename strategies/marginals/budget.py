"""How one guarantee is divided over all that a run tells, and what noise each part gets.

Everything told is a table of counts with normal noise. Replacing the values of one row moves one
count of a table down and one up, so a table has the sensitivity ``sqrt(2)``; with noise of standard
deviation sigma it is a Gaussian mechanism of strength ``mu^2 = 2 / sigma^2``. Strengths of
mechanisms add up, also where later ones depend on what earlier ones told (Dong, Roth and Su 2022,
"Gaussian Differential Privacy", Corollary 2), and all together are ``(epsilon, delta)`` private
if a single one of their sum is (`flwr_vertical.privacy.gaussian_delta`). This is tighter than the
zero-concentrated accounting of MST and AIM, and holds for the same noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from scipy.special import ndtri

from flwr_vertical.privacy import gaussian_sigma

UNIT = 16
"""Noise is in whole sixteenths of a count."""

LEVELS = 4
"""Times that a column of numbers is cut (`domain`)."""

_DOMAINS, _COLUMNS, _ALL_PAIRS = 0.3, 0.035, 0.45  # the rest is for the chosen pairs


@dataclass(frozen=True)
class Budget:
    """Epsilon and delta of one row's values at all parties, and of all that a run tells."""

    epsilon: float
    delta: float

    @property
    def _strength(self) -> float:
        return gaussian_sigma(self.epsilon, self.delta / 2.0) ** -2

    def least_count(self, n_tables: int) -> float:
        """Return the noisy count with which a level may be named, in counts.

        A level that one row alone holds is named with a chance of at most half of delta in all
        columns together; the other half is for the noise. Names are no count, so noise alone
        would not hide that there is such a level.
        """
        # Noise is in steps: its tail is that of a normal variable half a step nearer, at most.
        passes = float(ndtri(1.0 - self.delta / 2.0 / n_tables))
        return 1.0 + 0.5 / UNIT + self.domain_sigma(n_tables) * passes

    def domain_sigma(self, n_tables: int) -> float:
        """Return the noise of each table that domains are found from, in counts.

        `n_tables`: of all parties: one for a column of levels, `LEVELS` for one of numbers.
        """
        return self._sigma(_DOMAINS, n_tables)

    def column_sigma(self, n_columns: int) -> float:
        """Return the noise of the counts of each column's levels, in counts."""
        return self._sigma(_COLUMNS, n_columns)

    def pair_sigma(self, n_pairs: int, chosen: bool) -> float:
        """Return the noise of the table of each of the chosen pairs of columns, or of all."""
        rest = 1.0 - _DOMAINS - _COLUMNS - _ALL_PAIRS
        return self._sigma(rest if chosen else _ALL_PAIRS, n_pairs)

    def _sigma(self, share: float, n_tables: int) -> float:
        sigma = sqrt(2.0 * max(n_tables, 1) / (share * self._strength))
        return max(ceil(sigma * UNIT), 1) / UNIT


def n_bins(n_rows: int, sigma: float) -> int:
    """Return the most bins of a column of numbers, given the noise of a table of two columns.

    They are so many that a cell of such a table has about twice as many counts as noise, up to 16:
    with more, a model of at most 100,000 cells has no place for what `AIM` would add to the forest.
    """
    return min(max(int(_BINS * sqrt(n_rows / sigma)), _FEWEST), _MOST)


_FEWEST, _MOST, _BINS = 4, 16, 0.75


def pair_places(n_columns: Sequence[int]) -> int:
    """Return how many pairs there are of so many columns of each party."""
    total = sum(n_columns)
    return total * (total - 1) // 2
