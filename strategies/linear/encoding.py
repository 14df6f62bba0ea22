"""Levels as columns of 0 and 1: which of them get one, under which name.

The names of the columns go to the server as names of coefficients. A level that few rows have must
not be named: that somebody has it may be what nobody is to know, and its column could not be
multiplied anyway (`levels_are_safe`). Such levels become one, "other".
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.products.row_groups import levels_are_safe

logger = logging.getLogger("flwr_vertical")

OTHER = "other"


@dataclass(frozen=True)
class Encoded:
    """The columns that a column of levels becomes."""

    # By name, the levels for which the column is 1. The levels of no column are the baseline.
    columns: dict[str, list[Any]]
    other: list[Any]  # Levels that were too rare and count as one; empty if none was


def encode_levels(
    name: str, counts: Mapping[Any, int], minimum: int | None = None, party: str = ""
) -> Encoded:
    """Decide which levels of a column get a column of their own."""
    counts = {level: count for level, count in counts.items() if count}
    total = sum(counts.values())

    def rare(count: int) -> bool:
        return not levels_are_safe(np.array([count, total - count]), 1, minimum)

    other = [level for level, count in counts.items() if rare(count)]
    if len(counts) == 2 and other:  # both are as rare as each other: it is a flag
        other = list(counts)
    while other and len(other) < len(counts) and rare(sum(counts[level] for level in other)):
        left = [level for level in counts if level not in other]
        other.append(min(left, key=lambda level: counts[level]))
    kept = [level for level in counts if level not in other]
    columns = {f"{name}={level}": [level] for level in kept[1:]}
    if other:
        if kept:
            columns[_other_name(name, kept)] = other
        logger.info(
            "party %r, column %r: %d of its %d levels are too rare to be named and count as one",
            party,
            name,
            len(other),
            len(counts),
        )
    return Encoded(columns, other)


def _other_name(name: str, kept: list[Any]) -> str:
    label = OTHER
    while label in map(str, kept):
        label = f"{label} levels" if label == OTHER else f"{label}."
    return f"{name}={label}"
