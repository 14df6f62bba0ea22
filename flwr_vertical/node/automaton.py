"""What a node answers: the protocol of its run as an automaton, and the place that it is at.

States are the rounds as they are written (Glushkov's construction): a message is answered if its
step may follow the place at which the node is, and was not taken more often than the repetitions
around it allow. Where a step stands at several places, each way to read what came is followed, with
counts of its own. All of it lies in the node's state, so that a node that goes back to an earlier
state (a snapshot, a step taken again) is at the place that it was at then.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict

from flwr_vertical.errors import UnexpectedMessageError
from flwr_vertical.protocol import declaration, pins, private_sum
from flwr_vertical.protocol.arguments import arguments_of
from flwr_vertical.protocol.binding import NAMES as OWN_NAMES
from flwr_vertical.protocol.binding import digest_of_arguments, names_of
from flwr_vertical.protocol.codec import decode
from flwr_vertical.protocol.messages import ARGUMENTS, SUMS, UPDATES, read_envelope

# Under a prefix that the server may not write to.
_PLACES, _COUNTS, _ANSWERED = "protocol.places", "protocol.counts", "protocol.answered"
REFUSED = "protocol.refused"

_START = -1
_MOST_WAYS = 16
"""To read what came. Those that are earliest in the protocol are kept: most may follow them."""

_UNKNOWN = 2**31
"""In place of the number of samples at an arbiter, which is told of none."""


@dataclass(frozen=True)
class PlacedRound:
    """A round where it stands in the protocol."""

    round: declaration.Round
    at_most: tuple[int | str, ...]  # of each repetition around it
    settings: Mapping[str, Any]  # of the protocol that it stands in


@dataclass(frozen=True)
class _Way:
    """One way to read the steps that were taken."""

    place: int  # Of the last of them
    counts: tuple[int, ...]  # How often each place was taken

    def to(self, place: int) -> "_Way":
        """Return this way with one more step."""
        before, after = self.counts[:place], self.counts[place + 1 :]
        return _Way(place, (*before, self.counts[place] + 1, *after))

    def covers(self, other: "_Way") -> bool:
        """Whether whatever may follow the other way may follow this one."""
        pairs = zip(self.counts, other.counts, strict=True)
        return self.place == other.place and all(own <= theirs for own, theirs in pairs)


@dataclass
class _Ends:
    """What a part begins and ends with; whether it may be absent."""

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    empty: bool = True


class Automaton:
    """Which steps may follow which, for a party or the arbiter of a run."""

    def __init__(self, protocol: declaration.Protocol, role: str, encrypted: bool) -> None:
        self.protocol, self._role, self._encrypted = protocol, role, encrypted
        self.places: list[PlacedRound] = []
        self._settings = protocol.settings
        self._follow: dict[int, set[int]] = {_START: set()}
        whole = self._sequence(protocol.parts, ())
        self._follow[_START] |= set(whole.first)

    def next_places(self, place: int) -> list[int]:
        """Return which places may follow one; -1 stands for the beginning."""
        return sorted(self._follow[place])

    def step_at(self, place: int) -> str:
        """Return the step of a place, as this role takes it."""
        one = self.places[place].round
        is_release = self._role == "arbiter" and one.ask != declaration.ARBITER
        return one.release if is_release else one.step

    def _sequence(self, parts: Iterable[declaration.Part], around: tuple[int | str, ...]) -> _Ends:
        whole = _Ends()
        for part in parts:
            ends = self._part(part, around)
            for place in whole.last:
                self._follow[place] |= set(ends.first)
            whole.first += ends.first if whole.empty else []
            whole.last = ends.last + (whole.last if ends.empty else [])
            whole.empty = whole.empty and ends.empty
        return whole

    def _part(self, part: declaration.Part, around: tuple[int | str, ...]) -> _Ends:
        if isinstance(part, declaration.Round):
            return self._round(part, around)
        if isinstance(part, declaration.Repeat):
            ends = self._sequence(part.parts, (*around, part.at_most))
            for place in ends.last if part.at_most != 1 else []:
                self._follow[place] |= set(ends.first)
            ends.empty = True
            return ends
        if isinstance(part, declaration.Either):
            found = [self._part(choice, around) for choice in part.choices]
            first = [place for ends in found for place in ends.first]
            last = [place for ends in found for place in ends.last]
            return _Ends(first, last, any(ends.empty for ends in found))
        assert isinstance(part, declaration.Sequence)  # settings were given, so no choice is left
        outer, self._settings = self._settings, getattr(part, "settings", self._settings)
        whole = self._sequence(part.parts, around)
        self._settings = outer
        return whole

    def _round(self, one: declaration.Round, around: tuple[int | str, ...]) -> _Ends:
        if self._role == "arbiter":
            if one.ask != declaration.ARBITER and not self._encrypted:
                return _Ends()
        elif one.ask == declaration.ARBITER:
            return _Ends()
        place = len(self.places)
        self.places.append(PlacedRound(one, around, self._settings))
        self._follow[place] = set()
        # Of what not all are asked, a node does not know whether it is among them.
        asked = self._role != "arbiter" and one.ask == declaration.ALL
        return _Ends([place], [place], not asked)


_AUTOMATA: dict[tuple[int, str, str, int], tuple[declaration.Protocol, Automaton]] = {}


def automaton_of(protocol: declaration.Protocol, role: str, mode: str, n_parties: int) -> Automaton:
    """Return the automaton of a protocol, made once as long as the protocol is the same object."""
    key = (id(protocol), role, mode, n_parties)
    known, found = _AUTOMATA.get(key, (None, None))
    if found is None or known is not protocol:  # another object at the same address
        if len(_AUTOMATA) > 64:
            _AUTOMATA.clear()
        chosen = protocol.chosen({"aggregation": mode, "n_parties": n_parties})
        found = Automaton(chosen, role, mode == "ckks")
        _AUTOMATA[key] = protocol, found
    return found


class Course:
    """Where a node is in the protocol of its run, read from its state and written back."""

    def __init__(
        self, protocol: declaration.Protocol, role: str, state: Any, request: RecordDict, who: str
    ) -> None:
        told = [*decode(request, UPDATES).get(private_sum.PEERS, [])]
        peers = told or list(state.get(private_sum.PEERS, []))
        # Where sums are not masked, nobody's keys say how many there are.
        told_of = decode(request, UPDATES).get("n-parties", state.get("n-parties", 1))
        self._n_parties = len(peers) or int(told_of)
        mode = str(state[private_sum.MODE])
        automaton = automaton_of(protocol, role, mode, self._n_parties)
        self._automaton, self._state, self._who = automaton, state, who
        self._is_arbiter = role == "arbiter"
        self._hands_over = set(automaton.protocol.hands_over)
        self._taken: list[_Way] = []
        self.round: declaration.Round | None = None
        self.arguments: dict[str, Any] = {}
        self._again = False

    def admit(self, step: str, request: RecordDict, function: Callable[..., Any] | None) -> None:
        """Find `round` and `arguments` of a message, or refuse it; `function` is its step."""
        if self._state.get(REFUSED):
            raise UnexpectedMessageError(
                self._who, step, "it refused an earlier message of this run, which has ended"
            )
        automaton, ways = self._automaton, self._ways()
        asked = [
            way.to(place)
            for way in ways
            for place in automaton.next_places(way.place)
            if automaton.step_at(place) == step
        ]
        if not asked and self._is_asked_again(step, request):
            self._again = True
            self._check_written(step, request, [])
            everywhere = range(len(automaton.places))
            first = next(place for place in everywhere if automaton.step_at(place) == step)
            self.round = automaton.places[first].round
            self.arguments = decode(request, ARGUMENTS)
            return
        if not asked:
            following = {place for way in ways for place in automaton.next_places(way.place)}
            expected = sorted({automaton.step_at(place) for place in following})
            raise UnexpectedMessageError(
                self._who, step, f"next may come {expected or 'nothing more'}"
            )
        names = {**automaton.places[asked[0].place].settings, **self._facts()}
        most = {way.place: self._most(way.place, names) for way in asked}
        within = [way for way in asked if way.counts[way.place] <= most[way.place]]
        if not within:
            raise UnexpectedMessageError(
                self._who, step, f"it may come {max(most.values())} times in this run, and has"
            )
        self._taken = _distinct(within)
        places = sorted({way.place for way in self._taken})
        self._check_written(step, request, places)
        self._check_arguments(step, request, names, function)
        self.round = automaton.places[places[0]].round

    def note_taken(self, step: str, request: RecordDict) -> None:
        """Write into the state that the step was taken."""
        if self._again:
            return
        self._state[_PLACES] = [way.place for way in self._taken]
        self._state[_COUNTS] = [count for way in self._taken for count in way.counts]
        if any(self._automaton.places[way.place].round.again for way in self._taken):
            key = f"{_ANSWERED}.{step}"
            self._state[key] = [*self._state.get(key, []), digest_of_arguments(step, request)]

    def _ways(self) -> list[_Way]:
        size = len(self._automaton.places)
        places = list(self._state.get(_PLACES, [_START]))
        counts = list(self._state.get(_COUNTS, [0] * size))
        return [
            _Way(place, tuple(counts[i * size : (i + 1) * size])) for i, place in enumerate(places)
        ]

    def _is_asked_again(self, step: str, request: RecordDict) -> bool:
        """Whether this very request was answered before, in a round of which no journal knows."""
        answered = self._state.get(f"{_ANSWERED}.{step}", [])
        return digest_of_arguments(step, request) in answered

    def _most(self, place: int, names: Mapping[str, Any]) -> int:
        most = 1
        for bound in self._automaton.places[place].at_most:
            most *= int(declaration.evaluate(bound, names))
        return most

    def _facts(self) -> dict[str, int]:
        absent = _UNKNOWN if self._is_arbiter else 0
        n_samples = int(self._state.get("n_samples", absent))
        return {"n_samples": n_samples, "n_parties": self._n_parties}

    def _check_written(self, step: str, request: RecordDict, places: list[int]) -> None:
        """Refuse keys of the state that no round lets the server write."""
        writable = {key for p in places for key in self._automaton.places[p].round.writes}
        for key in names_of(request, UPDATES):
            if key in writable:
                continue
            if key not in self._hands_over and key not in pins.HANDED_ON:
                raise UnexpectedMessageError(
                    self._who, step, f"the server may not write {key!r} into its state"
                )
            if key in self._state and not _equal(self._state[key], decode(request, UPDATES)[key]):
                raise UnexpectedMessageError(
                    self._who, step, f"the server wrote {key!r} into its state before, once a run"
                )

    def _check_arguments(
        self,
        step: str,
        request: RecordDict,
        names: dict[str, Any],
        function: Callable[..., Any] | None,
    ) -> None:
        """Refuse arguments that the step does not take, or out of their type, shape or bounds."""
        if function is None:
            raise UnexpectedMessageError(self._who, step, "this node has no such step")
        takes, given = arguments_of(function), names_of(request, ARGUMENTS)
        if unknown := takes.unknown(given):
            raise UnexpectedMessageError(self._who, step, f"it takes no arguments {unknown}")
        encrypted = ["sums"] if names_of(request, SUMS) else []
        if missing := takes.missing([*given, *encrypted]):
            raise UnexpectedMessageError(self._who, step, f"it needs the arguments {missing}")
        envelope: Any = read_envelope(request)
        differing = list(envelope.get(OWN_NAMES, []))
        if wrong := sorted(set(differing) - set(takes.own_names(differing))):
            raise UnexpectedMessageError(
                self._who, step, f"its arguments {wrong} are the same for all parties"
            )
        handed = decode(request, UPDATES)
        facts = {"n_samples": int(handed.get("n_samples", names["n_samples"]))}
        self.arguments = decode(request, ARGUMENTS)
        if problem := takes.problem(self.arguments, {**names, **facts}):
            raise UnexpectedMessageError(self._who, step, problem)


def _distinct(ways: list[_Way]) -> list[_Way]:
    """Return ways without those that another one covers."""
    found: list[_Way] = []
    for way in ways:
        if len(found) < _MOST_WAYS and not any(other.covers(way) for other in found):
            found.append(way)
    return found


def _equal(one: Any, other: Any) -> bool:
    tolist = getattr(one, "tolist", None), getattr(other, "tolist", None)
    if None in tolist:
        return type(one) is type(other) and bool(one == other)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
