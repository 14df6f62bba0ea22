"""Formulas of a party's columns: what a server may ask for, and nothing else.

A formula is a server's input to a node. It is read by this grammar; what libraries evaluate later
is written anew from what was read::

    sum    = star (("+" | "-") star)*
    star   = inter ("*" inter)*              a*b: a + b + a:b
    inter  = power (":" power)*
    power  = atom ["**" number]              (a + b)**2: a + b + a:b
    atom   = column | call | "(" sum ")"
    column = name | "`" any text "`"
    call   = one of `CALLS` "(" column ("," [word "="] number)* ")"

Wilkinson and Rogers, "Symbolic description of factorial models for analysis of variance", Journal
of the Royal Statistical Society C 22 (1973).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from flwr_vertical.errors import ConfigError

LONGEST = 2_000
"""Characters of a party's formula, at most."""

MOST_TERMS = 200
MOST_FACTORS = 4
"""Of a term."""

_DEEPEST = 20  # parentheses within parentheses

CALLS: Mapping[str, tuple[tuple[str, int, int, int | None], ...]] = MappingProxyType(
    {
        "bs": (("df", 1, 30, None), ("degree", 1, 5, 3)),
        "cr": (("df", 2, 30, None),),
        "cc": (("df", 2, 30, None),),
        "poly": (("degree", 1, 8, None),),
        "center": (),
        "scale": (),
        "log": (),
        "sqrt": (),
        "C": (),
    }
)
"""By transform, its arguments beside the column: name, least, most and default (None: required)."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,6}(?![\w.]))|(?P<name>[^\W\d]\w*)|`(?P<quoted>[^`]+)`"
    r"|(?P<sign>\*\*|[-+:*(),=]))"
)


@dataclass(frozen=True)
class Factor:
    """A column, or a transform of one."""

    column: str
    call: str = ""
    numbers: tuple[int, ...] = ()  # In the order of `CALLS`

    @property
    def label(self) -> str:
        """How people write it."""
        if not self.call:
            return self.column
        shown = [
            str(number) if not place else f"{name}={number}"
            for place, ((name, _, _, default), number) in enumerate(
                zip(CALLS[self.call], self.numbers, strict=True)
            )
            if number != default
        ]
        return f"{self.call}({', '.join([self.column, *shown])})"

    @property
    def width(self) -> int:
        """How many columns a transform of numbers makes."""
        return self.numbers[0] if self.numbers else 1


Term = tuple[Factor, ...]
_Terms = dict[frozenset[Factor], Term]  # In the order of their first use; a:b is b:a


def read_formulas(formulas: str | Mapping[str, str] | None) -> str:
    """Return formulas by party as JSON text; `ConfigError` if one is none by the grammar."""
    if not formulas:
        return ""
    try:
        given = json.loads(formulas) if isinstance(formulas, str) else dict(formulas)
        read = {str(party): text for party, text in given.items()}
        valid = all(isinstance(text, str) for text in read.values())
    except (TypeError, ValueError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise ConfigError(
            "formula must be a mapping of party to formula, or the same as JSON text, such as "
            f'{{"bank": "income + bs(age, 4)"}}, got {str(formulas)[:80]!r}'
        )
    for party, text in read.items():
        parse_formula(text, party)
    return json.dumps(read)


def formulas_of(text: str) -> dict[str, str]:
    """Return the formulas in the text that `read_formulas` made."""
    return dict(json.loads(read_formulas(text) or "{}"))


def parse_formula(text: str, party: str) -> tuple[Term, ...]:
    """Return the terms of a formula: fewer factors first, then as they are written."""
    return _Reader(text, party).terms()


class _Reader:
    """Reads one formula."""

    def __init__(self, text: str, party: str) -> None:
        self._party, self._at, self._depth = party, 0, 0
        if len(text) > LONGEST:
            raise self._error(f"has {len(text):,} characters, at most {LONGEST:,} are taken")
        self._tokens: list[tuple[str, str]] = []
        place, text = 0, text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._error(f"cannot be read from {text[place:].lstrip()[:20]!r} on")
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind]))
            place = found.end()

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(
            f"formula of party {self._party!r} {problem}; it takes columns (`in backticks` if they "
            f"are no words), +, -, :, *, parentheses with **, and {', '.join(CALLS)} of a column"
        )

    def terms(self) -> tuple[Term, ...]:
        """Read all of it."""
        found = self._sum()
        if self._at < len(self._tokens):
            raise self._error(f"has {self._tokens[self._at][1][:20]!r} where it should end")
        if not found:
            raise self._error("has no term")
        return tuple(sorted(found.values(), key=len))

    def _take(self, *signs: str) -> str:
        """Take the next token if it is one of these signs, and return it; "" if it is not."""
        kind, text = self._peek()
        if kind != "sign" or text not in signs:
            return ""
        self._at += 1
        return text

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "its end")

    def _next(self, *kinds: str) -> str:
        kind, text = self._peek()
        if kind not in kinds:
            raise self._error(f"has {text[:20]!r} where a {' or '.join(kinds)} belongs")
        self._at += 1
        return text

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._error(f"has {self._peek()[1][:20]!r} where {sign!r} belongs")

    def _sum(self) -> _Terms:
        found = self._star()
        while sign := self._take("+", "-"):
            more = self._star()
            if sign == "+":
                found = self._joined(found, more)
            else:
                found = {key: term for key, term in found.items() if key not in more}
        return found

    def _star(self) -> _Terms:
        found = self._inter()
        while self._take("*"):
            other = self._inter()
            found = self._joined(found, other, self._interacted(found, other))
        return found

    def _inter(self) -> _Terms:
        found = self._power()
        while self._take(":"):
            found = self._interacted(found, self._power())
        return found

    def _power(self) -> _Terms:
        base = found = self._atom()
        if self._take("**"):
            power = int(self._next("number"))
            if not 1 <= power <= MOST_FACTORS:
                raise self._error(f"has the power {power}, at least 1 and at most {MOST_FACTORS}")
            for _ in range(power - 1):
                found = self._joined(found, self._interacted(found, base))
        return found

    def _atom(self) -> _Terms:
        if self._take("("):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error(f"has more than {_DEEPEST} parentheses within each other")
            found = self._sum()
            self._need(")")
            self._depth -= 1
            return found
        kind, text = self._peek()
        if kind == "number":
            raise self._error(f"has the number {text} as a term (see the setting intercept)")
        name = self._next("name", "quoted")
        called = kind == "name" and bool(self._take("("))
        factor = self._call(name) if called else Factor(name)
        return {frozenset([factor]): (factor,)}

    def _call(self, call: str) -> Factor:
        if call not in CALLS:
            raise self._error(f"calls {call[:20]!r}")
        column, given = self._next("name", "quoted"), dict[str, int]()
        known = CALLS[call]
        while self._take(","):
            place = len(given)
            word = known[place][0] if place < len(known) else ""
            if self._peek()[0] == "name":
                word = self._next("name")
                self._need("=")
            limits = {name: (least, most) for name, least, most, _ in known}
            if word not in limits or word in given:
                raise self._error(f"gives {call} an argument that it does not take")
            number, (least, most) = int(self._next("number")), limits[word]
            if not least <= number <= most:
                raise self._error(f"has {call} with {word} {number}, expected {least} to {most}")
            given[word] = number
        self._need(")")
        numbers = [given.get(name, default) for name, _, _, default in known]
        found = tuple(number for number in numbers if number is not None)
        if len(found) < len(numbers):
            raise self._error(f"has {call} without {known[0][0]}")
        if call == "bs" and found[0] < found[1]:
            raise self._error(f"has bs with df {found[0]} below its degree {found[1]}")
        return Factor(column, call, found)

    def _interacted(self, one: _Terms, other: _Terms) -> _Terms:
        made: _Terms = {}
        for first, second in product(one.values(), other.values()):
            term = first + tuple(factor for factor in second if factor not in first)
            if len(term) > MOST_FACTORS:
                raise self._error(f"has a term of more than {MOST_FACTORS} factors")
            made = self._kept(made, term)
        return made

    def _joined(self, *parts: _Terms) -> _Terms:
        made: _Terms = {}
        for term in (term for part in parts for term in part.values()):
            made = self._kept(made, term)
        return made

    def _kept(self, made: _Terms, term: Term) -> _Terms:
        made.setdefault(frozenset(term), term)
        if len(made) > MOST_TERMS:
            raise self._error(f"has more than {MOST_TERMS} terms")
        return made
