"""Mechanisms of MST and AIM: noisy tables of counts, and levels found from them."""

import numpy as np

from flwr_vertical.arrays import Array
from flwr_vertical.privacy import Keystream, gaussian_sigma
from simulations.audits.mechanism import Mechanism, each_run
from strategies.copula.margins import Domain
from strategies.marginals.budget import LEVELS, UNIT, Budget
from strategies.marginals.domain import bins_of, levels_of, noisy
from strategies.marginals.tables import PairTables

EPSILON, DELTA = 2.0, 0.05  # as large as those of `sums`, so that outcomes are not rare

_SIGMA = 2**0.5 * gaussian_sigma(EPSILON, DELTA)  # of a table alone, where one count moves to one
_MOVED = np.array([[-1.0, 0.0], [0.0, 1.0]])
"""What a row adds to the counts of two columns' levels that has the second of both."""
_BUDGET = Budget(EPSILON, DELTA)


def mechanisms() -> list[Mechanism]:
    """Return them all."""
    moved = "a row has other levels"
    return [
        Mechanism("mst, aim: counts of a column's levels", moved, EPSILON, _column, DELTA,
                  tight=True),
        Mechanism("mst, aim: a table of two parties, seen by one that takes its own noise off",
                  moved, EPSILON, _pair, DELTA, tight=True, cost=2),
        Mechanism("mst, aim: every count of a run of two parties, one's noise on the pair off",
                  moved, EPSILON, _run, DELTA, tight=True),
        Mechanism("levels_of: which levels are told of", "a row of a rare level has the other",
                  EPSILON, _levels, DELTA, cost=4),
        Mechanism("mst, aim: counts of levels and their noise, by two tables",
                  "a row of the first level has one that no other row has", EPSILON, _twice,
                  DELTA, cost=4),
        Mechanism("bins_of: a margin of numbers", "one of 41 values is 3, not 0", EPSILON, _bins,
                  DELTA, cost=8),
    ]  # fmt: skip


def _likelier(told: Array, moved: Array, sigma: float) -> float:
    """Return by how much counts, less those of the first table, are likelier from the second."""
    return float((told * moved).sum()) / sigma**2


@each_run
def _column(table: int, stream: Keystream) -> float:
    moved = _MOVED.sum(axis=0)
    return _likelier(noisy(table * moved, _SIGMA, stream), moved, _SIGMA)


@each_run
def _pair(table: int, stream: Keystream) -> float:
    return _likelier(_across(table, _SIGMA, stream), _MOVED, _SIGMA)


def _across(table: int, sigma: float, stream: Keystream) -> Array:
    """Return a table of two parties' columns with the noise of the first alone."""
    tables = PairTables.of(np.array([[0, 1]]), [2, 2], [1, 1])
    noise = tables.noise(0, sigma, stream).view(np.int64).astype(np.float64) / UNIT
    return np.asarray(table * _MOVED + noise.reshape(2, 2))


@each_run
def _run(table: int, stream: Keystream) -> float:
    """Two columns of levels, the tables that these are found from told as they are."""
    moved, found = _MOVED.sum(axis=0), 0.0
    for sigma in [_BUDGET.domain_sigma(2), _BUDGET.column_sigma(2)]:
        for _ in range(2):
            found += _likelier(noisy(table * moved, sigma, stream), moved, sigma)
    for chosen in (False, True):
        sigma = _BUDGET.pair_sigma(1, chosen)
        found += _likelier(_across(table, sigma, stream), _MOVED, sigma)
    return found


@each_run
def _levels(table: int, stream: Keystream) -> float:
    """Two rows have a rare level, or one."""
    codes = np.repeat(np.arange(3.0), [30, 3 - table, 30 + table])
    return float(1.0 in levels_of(codes, 3, None, 3, _SIGMA, stream).values)


@each_run
def _twice(table: int, stream: Keystream) -> float:
    """Rows have the first level or one of five rare ones, together other; or one row has a sixth.

    How many levels are other must not show, neither in the counts nor in their noise.
    """
    sigma = 2**0.5 * _SIGMA  # of each of two tables
    codes = np.repeat(np.arange(7.0), [60 - table, 4, 4, 4, 4, 4, table])
    n_levels = 6 + table
    found = levels_of(codes, n_levels, n_levels, 20.0, sigma, stream)
    counts, noise = found.counted(sigma, stream)
    # The first level's counts are those of both tables, the others' of the second alone.
    likelier = ((counts[0] - 59.5) * -2.0 + (counts[1] - 20.5)) / sigma**2
    return float(likelier + 100.0 * round(noise / sigma - 0.75**0.5, 9))


@each_run
def _bins(table: int, stream: Keystream) -> float:
    values = np.repeat([0.0, 3.0], [21 - table, 20 + table])
    made = bins_of(values, Domain(0.0, 3.0, 1.0), 4, LEVELS**0.5 * _SIGMA, stream).margin
    assert made is not None
    return -float(np.interp(1.5, made.values, made.cumulative))
