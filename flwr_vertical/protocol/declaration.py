"""`Protocol`: the messages of a method in their order, written once.

A node builds from it what it answers (`node.automaton`); documentation, the report of a run and
tests read it. The arguments of a message are those of its step's signature, see `arguments`.
"""

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType
from typing import Any, TypeAlias

from flwr_vertical.errors import ConfigError

ALL, ONE, SOME, ARBITER = "all parties", "one party", "some parties", "the arbiter"
"""Who takes a round."""

NOTHING = "nothing"
"""Uniform numbers, or what is sealed for others: an answer without an entry in the ledger."""
FACTS = "facts"
"""Names of columns, public keys, numbers of rows: stated in the disclosure table, not counted."""
ROWS, BITS, EPSILON, IDS = "rows", "bits", "epsilon", "ids"
"""Sums over groups of rows; numbers of single samples; noisy sums; IDs of others that are blinded.

The framework lets no answer of such a round leave before the ledger has an entry of that kind.
"""
KINDS = (NOTHING, FACTS, ROWS, BITS, EPSILON, IDS)


@dataclass(frozen=True)
class Round:
    """A message to parties, and what they answer."""

    step: str  # The step that is asked for
    up: str = ""  # What the answer holds, in words
    # What the answer discloses: `NOTHING`, `FACTS`, `ROWS`, `BITS`, `EPSILON` or `IDS`; of several,
    # an answer is one or another
    tells: str | tuple[str, ...] = NOTHING
    ask: str = ALL  # Who is asked: `ALL`, `ONE`, `SOME` or `ARBITER`
    # Keys of a party's state that the server may write with this message
    writes: tuple[str, ...] = ()
    release: str = "reveal"  # The arbiter's step that releases the sums, where they are encrypted
    # Whether a server that is resumed asks for the same once more, as no journal keeps it
    again: bool = False

    def __post_init__(self) -> None:
        if unknown := [kind for kind in self.kinds if kind not in KINDS]:
            raise ConfigError(f"round {self.step!r} tells {unknown}; expected of {list(KINDS)}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the answer discloses, as a tuple."""
        return (self.tells,) if isinstance(self.tells, str) else self.tells


@dataclass(frozen=True)
class Sequence:
    """Parts one after the other."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True, init=False)
class Repeat(Sequence):
    """Parts that come again and again, or not at all.

    `at_most` says how often: a number, or an expression over the strategy's settings, ``n_samples``
    and ``n_parties``, such as ``"epochs * ceil(n_samples / batch_size)"``.
    """

    at_most: int | str

    def __init__(self, *parts: "Part", at_most: int | str) -> None:
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "at_most", at_most)


def Maybe(*parts: "Part") -> Repeat:  # noqa: N802 (stands among classes)
    """Return parts that come once or not at all."""
    return Repeat(*parts, at_most=1)


@dataclass(frozen=True, init=False)
class Either:
    """One of several sequences."""

    choices: "tuple[Part, ...]"

    def __init__(self, *choices: "Part") -> None:
        object.__setattr__(self, "choices", choices)


@dataclass(frozen=True, init=False)
class If:
    """Parts that depend on settings, and what comes `otherwise`.

    `condition` is an expression over the settings, ``aggregation`` and ``n_parties``, such as
    ``"family != 'gaussian'"``.
    """

    condition: str
    parts: "tuple[Part, ...]"
    otherwise: "tuple[Part, ...]"

    def __init__(self, condition: str, *parts: "Part", otherwise: "tuple[Part, ...]" = ()) -> None:
        object.__setattr__(self, "condition", condition)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "otherwise", otherwise)


@dataclass(frozen=True, init=False)
class Protocol(Sequence):
    """What a strategy, an alignment or a product exchanges.

    Parameters
    ----------
    *parts
        `Round`, `Repeat`, `Maybe`, `Either`, `If`, or another `Protocol`, in their order.
    hands_over : tuple[str, ...]
        Keys of a party's state that the server may write once, with any message.

    Examples
    --------
    >>> Protocol(
    ...     Round("prepare", "names of columns", tells=FACTS),
    ...     Repeat(Round("gradient", "a sum over rows", tells=ROWS), at_most="max_iter"),
    ... ).steps
    ('prepare', 'gradient')
    """

    hands_over: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    named: str = ""  # by its strategy, where an alignment comes before

    def __init__(
        self,
        *parts: "Part",
        hands_over: tuple[str, ...] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "hands_over", hands_over)
        object.__setattr__(self, "settings", dict(settings or {}))
        object.__setattr__(self, "named", "")

    def given(self, settings: Mapping[str, Any]) -> "Protocol":
        """Return the protocol of a run with these settings."""
        return replace_parts(self, self.parts, settings)

    def chosen(self, facts: Mapping[str, Any]) -> "Protocol":
        """Return the protocol with every choice made, by its settings and facts of the run."""
        names = {**self.settings, **facts}
        return replace_parts(self, _chosen(self.parts, names), self.settings)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds, in the order in which they are written."""
        return tuple(_rounds(self.parts))

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of all steps, each once."""
        return tuple(dict.fromkeys(one.step for one in self.rounds))

    def then(self, other: "Protocol") -> "Protocol":
        """Return this protocol with another one after it, which has the settings."""
        keys = (*self.hands_over, *other.hands_over)
        found = Protocol(self, other, hands_over=keys, settings=other.settings)
        object.__setattr__(found, "named", other.of_strategy)
        return found

    @cached_property
    def text(self) -> str:
        """The protocol as text: equal for equal protocols."""
        return repr((self.parts, self.hands_over, sorted(self.settings.items(), key=str)))

    @cached_property
    def of_strategy(self) -> str:
        """A name of what the strategy exchanges, by which a node and its server compare it."""
        return self.named or hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()


Part: TypeAlias = Round | Sequence | Either | If


def replace_parts(
    protocol: Protocol, parts: tuple[Part, ...], settings: Mapping[str, Any]
) -> Protocol:
    """Return a protocol with other parts."""
    return Protocol(*parts, hands_over=protocol.hands_over, settings=settings)


def evaluate(expression: int | str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression of this node's own code over settings and facts."""
    if isinstance(expression, int):
        return expression
    known = {"ceil": math.ceil, "log2": math.log2, "max": max, "min": min, "len": len, **names}
    try:
        return eval(_compiled(expression), {"__builtins__": {}}, known)
    except Exception as error:
        raise ConfigError(
            f"a protocol says {expression!r}, which cannot be worked out ({error}); it may name "
            f"{sorted(names)}"
        ) from error


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<protocol>", "eval")


def _chosen(parts: tuple[Part, ...], settings: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return parts with every choice by settings made."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, If):
            holds = evaluate(part.condition, settings)
            found += _chosen(part.parts if holds else part.otherwise, settings)
        elif isinstance(part, Repeat):
            found.append(Repeat(*_chosen(part.parts, settings), at_most=part.at_most))
        elif isinstance(part, Protocol):
            own = {**settings, **part.settings}  # a stage of several has settings of its own
            found.append(replace_parts(part, _chosen(part.parts, own), own))
        elif isinstance(part, Either):
            found.append(Either(*_chosen(part.choices, settings)))
        elif isinstance(part, Sequence):
            found.append(replace(part, parts=_chosen(part.parts, settings)))
        else:
            found.append(part)
    return tuple(found)


def _rounds(parts: tuple[Part, ...]) -> Iterator[Round]:
    for part in parts:
        if isinstance(part, Round):
            yield part
        elif isinstance(part, Either):
            yield from _rounds(part.choices)
        elif isinstance(part, If):
            yield from _rounds((*part.parts, *part.otherwise))
        elif isinstance(part, Sequence):
            yield from _rounds(part.parts)
        else:
            raise ConfigError(
                f"a protocol has the part {part!r}, expected Round, Repeat, Maybe, Either, If or "
                "another Protocol"
            )
