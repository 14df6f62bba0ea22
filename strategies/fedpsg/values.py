"""From groups of values to values: what a party writes into a generated cell."""

import numpy as np

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.tables import Kind, is_numeric
from strategies.fedpsg.association_rules import Weights
from strategies.fedpsg.value_groups import NONE, ValueGroups


def values_of_groups(
    groups: ValueGroups, numbers: Indices, drawn: bool, rng: np.random.Generator
) -> Array:
    """Return a value for each group number.

    Shapes: numbers (n,): `NONE` gives NaN.
    """
    out = np.full(len(numbers), np.nan)
    for number, members in enumerate(groups.members):
        here = numbers == number
        out[here] = rng.choice(members, int(here.sum())) if drawn else groups.medians[number]
    return out


def values_of_sources(
    groups: ValueGroups, weights: Weights, sources: Indices, kind: Kind | str
) -> Array:
    """Return the expected value of the attribute, given the source's group.

    Shapes: weights (n_source, n_target): shares of its groups, up to a factor; sources (n,):
    `NONE` gives NaN.
    """
    expected = np.full(len(weights) + 1, np.nan)  # the last stands for NONE
    for source, row in enumerate(weights.astype(np.float64)):
        if not row.any():
            continue
        if is_numeric(kind):
            expected[source] = row @ groups.means / row.sum()
        elif Kind(kind) is Kind.ORDINAL:
            at = np.searchsorted(np.cumsum(row), row.sum() / 2.0)
            expected[source] = groups.medians[at]
        else:
            expected[source] = groups.medians[row.argmax()]
    assert NONE == -1
    found: Array = expected[sources]
    return found


def rest_values(
    seen: Array, count: int, numeric: bool, drawn: bool, rng: np.random.Generator
) -> Array:
    """Return values of an attribute where nothing is known of a sample.

    Shapes: seen (n_seen,): what the party observed of the attribute; at least one value.
    """
    if drawn:
        drawn_values: Array = rng.choice(seen, count)
        return drawn_values
    if numeric:
        return np.full(count, seen.mean())
    levels, counts = np.unique(seen, return_counts=True)
    return np.full(count, levels[counts.argmax()])
