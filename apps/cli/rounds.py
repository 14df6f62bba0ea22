"""The rounds of a strategy in words, from what it declares as its protocol."""

from collections.abc import Iterator
from dataclasses import dataclass

from flwr_vertical.protocol.declaration import Either, If, Part, Protocol, Repeat, Round
from flwr_vertical.strategy import Strategy

UNDECLARED = (
    "no protocol is declared: a node takes part by its owner's consent, answers every step of the "
    "strategy, and counts what leaves it by its size"
)


@dataclass(frozen=True)
class RoundRow:
    """A round as documentation lists it."""

    step: str
    asked: str
    up: str
    tells: str
    when: str  # "" for once in every run


def round_rows(protocol: Protocol) -> list[RoundRow]:
    """Return all rounds in their order, with the choices and repetitions around them in words."""
    return list(_rows(protocol.parts, ()))


def protocols_of(strategy: type[Strategy]) -> list[tuple[str, Protocol | None]]:
    """Return what a strategy exchanges, under a heading each: its run, predictions of new rows."""
    new_rows = strategy.predictions
    of_run = strategy.protocol
    found: list[tuple[str, Protocol | None]] = []
    if of_run is not None or strategy.protocol_of_run is Strategy.protocol_of_run:
        found.append(("rounds after the alignment", of_run))
    if new_rows is not None:
        found.append(("rounds where 'predict' uses the model", new_rows.protocol))
    return found


def _rows(parts: tuple[Part, ...], around: tuple[str, ...]) -> Iterator[RoundRow]:
    for part in parts:
        if isinstance(part, Round):
            tells = " or ".join(part.kinds)
            yield RoundRow(part.step, part.ask, part.up, tells, "; ".join(around))
        elif isinstance(part, Either):
            for number, choice in enumerate(part.choices):
                yield from _rows((choice,), (*around, "or" if number else "either"))
        elif isinstance(part, If):
            yield from _rows(part.parts, (*around, f"if `{part.condition}`"))
            yield from _rows(part.otherwise, (*around, f"unless `{part.condition}`"))
        elif isinstance(part, Repeat):
            yield from _rows(part.parts, (*around, _times(part.at_most)))
        else:
            yield from _rows(part.parts, around)


def _times(at_most: int | str) -> str:
    if at_most == 1:
        return "once or not at all"
    return f"at most {at_most if isinstance(at_most, int) else f'`{at_most}`'} times"
