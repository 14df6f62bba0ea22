"""Mechanisms of releases: comparisons, ranks, and all that a holder of columns tells."""

import numpy as np

from flwr_vertical.privacy import Keystream, seeded_noise
from flwr_vertical.tables import Kind
from simulations.audits.mechanism import Mechanism, each_run
from strategies.copula.party import Label
from strategies.copula.ranks import Flip, column_ranks, perturbed_ranks
from strategies.copula.release import ReleaseBudget, make_release

_COMPARISON = Flip.of(1.0)
_OF_FOUR = Flip.of(0.5)
_OF_LEVELS = Flip.of(2.0)
_BUDGET = ReleaseBudget(2.75, rank_share=0.9, min_level=0)
_FILLED = ReleaseBudget(0.7, rank_share=0.9)
_GAPS = 2


def mechanisms() -> list[Mechanism]:
    """Return them all."""
    return [
        Mechanism("a comparison of two rows", "it comes out the other way", _COMPARISON.epsilon,
                  _comparison, tight=True, cost=4),
        Mechanism("ranks of four rows", "the lowest value is the highest", 3 * _OF_FOUR.epsilon,
                  _ranks, tight=True, cost=4),
        Mechanism("ranks of two rows in each of three levels", "one row's level is the other's",
                  _OF_LEVELS.epsilon, _level_ranks, tight=True, cost=4),
        Mechanism("make_release: ranks, levels and numbers of a party",
                  "both values of a row are replaced", _BUDGET.spent([2, 2]), _release,
                  tight=True, cost=8),
        Mechanism("make_release with cells filled", "the value that the mean follows is replaced",
                  _FILLED.spent([2 + _GAPS]), _filled, cost=8),
        Mechanism("the labels of the server", "a label is replaced", _BUDGET.spent([2]), _labels,
                  tight=True, cost=16),
    ]  # fmt: skip


@each_run
def _comparison(table: int, stream: Keystream) -> float:
    return float(perturbed_ranks(np.array([table, 1 - table]), _COMPARISON, stream)[0])


@each_run
def _ranks(table: int, stream: Keystream) -> float:
    return float(perturbed_ranks(np.array([5 * table, 1, 2, 3]), _OF_FOUR, stream)[0])


@each_run
def _level_ranks(table: int, stream: Keystream) -> float:
    ranks = column_ranks(np.array([table, 1]), 3, _OF_LEVELS, stream)
    return float(ranks[0, 1] - ranks[0, 0])


@each_run
def _release(table: int, stream: Keystream) -> float:
    codes = np.array([[3.0 * table, float(table)], [1.0, 1.0 - table]])
    kinds = {"amount": Kind.CONTINUOUS, "level": Kind.BINARY}
    made = make_release(
        codes, kinds, [0, 2], {"amount": (0.0, 3.0)}, {"amount": 1.0}, [None, None], _BUDGET,
        stream, "a party",
    )  # fmt: skip
    return float(made.ranks[0].sum())


@each_run
def _filled(table: int, stream: Keystream) -> float:
    codes = np.array([100.0 * table, 1.0] + [np.nan] * _GAPS)[:, None]
    made = make_release(
        codes, {"x": Kind.CONTINUOUS}, [0], {"x": (0.0, 100.0)}, {"x": 1.0}, [None], _FILLED,
        stream, "a party", fill=True,
    )  # fmt: skip
    return float(made.ranks[0, 0]) - float(made.ranks[1, 0])


@each_run
def _labels(table: int, stream: Keystream) -> float:
    values = np.array([3.0 * table, 1.0])
    with seeded_noise(stream.below(2**62)):  # another release each time
        label = Label("y", values, None, False, {"y": (0, 3)}, {"y": 1.0}, _BUDGET, bytes(16))
    return float(label.made.ranks[0, 0])
