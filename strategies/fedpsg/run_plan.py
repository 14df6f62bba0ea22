"""What a party is told of the course of a run, and checks before it multiplies columns."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_vertical.arrays import Flags, Indices
from flwr_vertical.errors import ProtocolError
from strategies.fedpsg.attribute_pairs import Pair

_ROWS = "fedpsg.rows"
_MASK = "fedpsg.mask"
_NAMES = "fedpsg.names"
_MINIMUM = "fedpsg.minimum"
_PAIRS = "fedpsg.pairs"
_MOST = "fedpsg.most"
_FEATURES = "fedpsg.features told"
SCORE_LABELS, COUNT_LABELS = "fedpsg.labels of scores", "fedpsg.labels of counts"
WRITTEN = (
    _ROWS, _MASK, _NAMES, _MINIMUM, _PAIRS, _MOST, _FEATURES, SCORE_LABELS, COUNT_LABELS,
)  # fmt: skip
"""What the server writes into the state of parties, each once in a run."""


def told_of_rows(group: Indices, mask: Flags, names: list[str], minimum: int) -> dict[str, Any]:
    """Return what every party keeps of the shared rows, for `Federation.update`."""
    return {_ROWS: group, _MASK: mask, _NAMES: list(names), _MINIMUM: minimum}


def told_of_pairs(pairs: list[Pair], most: list[int], names: list[str]) -> dict[str, Any]:
    """Return what every party keeps of the chosen pairs: numbers, no correlations."""
    numbers = [
        [names.index(p.target), p.column, names.index(p.source), p.source_column] for p in pairs
    ]
    return {_PAIRS: np.array(numbers, dtype=np.int64).reshape(-1, 4), _MOST: list(most)}


def told_of_features() -> dict[str, Any]:
    """Return what every party keeps when products of the regressions' columns follow."""
    return {_FEATURES: True}


def told_of_labels(labels: Indices, told: Collection[str]) -> dict[str, Any]:
    """Return what every party keeps of which columns belong together, given what it was told."""
    return {COUNT_LABELS if _PAIRS in told else SCORE_LABELS: labels}


def multiplied(state: Mapping[str, Any]) -> str:
    """Return what columns a party multiplies, by what it was told so far."""
    if state.get(_FEATURES, False):
        return "features"
    return "counts" if _PAIRS in state else "rank scores"


@dataclass(frozen=True)
class Part:
    """A party's part in a pair of attributes."""

    number: int  # Of the pair
    other: str  # The other party
    column: int  # The own attribute
    most: int  # How many groups of values it has at most
    is_target: bool  # Whether the own attribute is the one that is generated


class Plan:
    """The course of a run, as one party was told it."""

    def __init__(self, party: str, state: Mapping[str, Any]) -> None:
        if _ROWS not in state:
            raise ProtocolError(f"party {party!r} has not been told yet which rows are shared")
        self.party = party
        self.names: list[str] = list(state[_NAMES])
        self.group: Indices = np.asarray(state[_ROWS], dtype=np.int64)
        self.mask: Flags = np.asarray(state[_MASK], dtype=bool)
        self.minimum = int(state[_MINIMUM])
        self.place = self.names.index(party)
        self.counts_pairs, self.regresses = _PAIRS in state, multiplied(state) == "features"
        self._pairs = np.asarray(state.get(_PAIRS, np.zeros((0, 4))), dtype=np.int64)
        self._most = list(state.get(_MOST, []))
        told = state.get(COUNT_LABELS if self.counts_pairs else SCORE_LABELS)
        self.labels: Indices = np.zeros(0, dtype=np.int64) if told is None else np.asarray(told)

    @property
    def others(self) -> list[str]:
        """The other parties, in order."""
        return [name for name in self.names if name != self.party]

    @property
    def parts(self) -> list[Part]:
        """The pairs in which the party takes part, in order."""
        found = []
        for number, (target, column, source, source_column) in enumerate(self._pairs.tolist()):
            if self.place == target:
                other = self.names[source]
                found.append(Part(number, other, column, self._most[number], True))
            elif self.place == source:
                other = self.names[target]
                found.append(Part(number, other, source_column, self._most[number], False))
        return found

    @property
    def held(self) -> Indices:
        """Rows that may be told of at all, ascending."""
        return self._rows(~self.mask[:, self.place])

    def shared_with(self, other: str) -> Indices:
        """Return the rows that the party shares with another one, ascending."""
        lacking = self.mask[:, [self.place, self.names.index(other)]]
        return self._rows(np.logical_not(lacking).all(axis=1))

    def _rows(self, groups: Any) -> Indices:
        return np.flatnonzero(np.append(groups, False)[self.group])

    def check(self, group: Any, missing: Any) -> None:
        """Refuse other rows than columns were made of: ranks among two would compare them."""
        same = np.array_equal(np.asarray(group), self.group) and missing is not None
        wanted = self.mask if np.ndim(missing) == 2 else self.mask[:, self.place]
        if not same or not np.array_equal(np.asarray(missing, dtype=bool), wanted):
            raise ProtocolError(
                f"party {self.party!r}: products are asked for over other rows than those that "
                "ranks and groups of values were made of"
            )
