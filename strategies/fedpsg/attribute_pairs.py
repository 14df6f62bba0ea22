"""Which attributes are generated from which: pairs by their rank correlation.

Liu, He, Tan et al., Section 3.2 (1) and (2). The paper takes the largest entry of the matrix again
and again, until the party that lacks samples has enough attributes. That is: for each of its
attributes the source that correlates most, and of these the attributes that correlate most. The
sign does not matter: rules know no direction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flwr_vertical.arrays import Array, Flags, Indices

Correlations = Mapping[tuple[str, str], Array]


@dataclass(frozen=True)
class Pair:
    """An attribute that is generated, and the one that it is generated from."""

    target: str  # The party that lacks samples
    column: int  # Which of its attributes is generated
    source: str  # The party whose attribute it is generated from
    source_column: int  # Which one
    correlation: float  # Their rank correlation


def matrix_of(correlations: Correlations, target: str, source: str) -> Array:
    """Return correlations of two parties, attributes of `target` in the rows."""
    if (target, source) in correlations:
        return correlations[target, source]
    return correlations[source, target].T


def choose_pairs(
    correlations: Correlations,
    parties: Sequence[str],
    targets: Sequence[str],
    n_associated: int,
    threshold: float = 0.0,
) -> list[Pair]:
    """Choose the attributes that association rules generate, and from what.

    Shapes: correlations (p_a, p_b): by two parties; NaN where nothing is known.
    """
    chosen = []
    for target in targets:
        best: dict[int, list[Pair]] = {}
        for source in parties:
            if source == target:
                continue
            matrix = np.nan_to_num(matrix_of(correlations, target, source))
            for column, row in enumerate(matrix):
                if not len(row):
                    continue
                at = int(np.abs(row).argmax())
                if abs(row[at]) > 0.0 and abs(row[at]) >= threshold:
                    pair = Pair(target, column, source, at, float(row[at]))
                    best.setdefault(column, []).append(pair)
        ordered = [sorted(of, key=lambda pair: -abs(pair.correlation)) for of in best.values()]
        ordered.sort(key=lambda of: -abs(of[0].correlation))
        chosen += [pair for of in ordered[:n_associated] for pair in of]
    return chosen


def choose_within(correlations: Array, count: int) -> list[int]:
    """Choose the attributes of a party that correlate most with each other (FedPSG-CAG)."""
    if len(correlations) == 1:
        return [0][:count]
    pairs = np.argwhere(np.triu(np.ones(correlations.shape, dtype=bool), 1))
    sizes = np.abs(np.nan_to_num(correlations))[tuple(pairs.T)]
    chosen: list[int] = []
    for pair in pairs[np.argsort(-sizes, kind="stable")]:
        chosen += [int(j) for j in pair if j not in chosen]
    return sorted(chosen[:count])


def rows_of_pairs(pairs: Sequence[Pair], parties: Sequence[str], mask: Flags) -> list[Indices]:
    """Return for each pair the samples that get its attribute, which the party lacks."""
    place = {name: k for k, name in enumerate(parties)}
    open_rows: dict[tuple[str, int], Flags] = {}
    found = []
    for pair in pairs:
        key = pair.target, pair.column
        left = open_rows.setdefault(key, mask[:, place[pair.target]].copy())
        taken = left & ~mask[:, place[pair.source]]
        left &= ~taken
        found.append(np.flatnonzero(taken))
    return found
