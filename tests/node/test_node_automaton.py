"""The automaton of a node, on protocols in which a step stands at several places."""

from typing import Annotated, Any, NotRequired, TypedDict, Unpack

import numpy as np
import pytest
from flwr.app import RecordDict

from flwr_vertical.arrays import Array, Indices
from flwr_vertical.errors import ProtocolError, UnexpectedMessageError
from flwr_vertical.node.automaton import Course
from flwr_vertical.protocol import private_sum
from flwr_vertical.protocol.arguments import (
    DISTINCT,
    AddsUpTo,
    Is,
    Shape,
    Within,
    arguments_of,
    check_fits,
)
from flwr_vertical.protocol.declaration import ARBITER, Either, Maybe, Protocol, Repeat, Round
from flwr_vertical.protocol.messages import make_request


def a() -> None: ...


class _Node:
    """Takes steps as a node does."""

    def __init__(self, protocol: Protocol, role: str = "party") -> None:
        self._protocol, self._role, self._number = protocol, role, 0
        mode = {"arbiter": "ckks", "party": "masked"}[role]
        rows = {} if role == "arbiter" else {"n_samples": 5}
        self._state: dict[str, Any] = {private_sum.MODE: mode, **rows}

    def take(self, steps: str, updates: dict[str, Any] | None = None) -> None:
        """Take some steps, a letter each."""
        for step in steps:
            step = {"r": "reveal"}.get(step, step)
            self._number += 1
            request: RecordDict = make_request(step, self._number, {}, updates, None)
            course = Course(self._protocol, self._role, self._state, request, "party 'a'")
            course.admit(step, request, a)
            course.note_taken(step, request)


@pytest.mark.parametrize("steps", ["aab", "aaaab", "aaaaab", "ab", "aaaaac"])
def test_each_way_to_read_a_step_has_its_own_counts(steps: str) -> None:
    # Were a loop's "a" counted as the last one as well, that would be refused.
    training = Repeat(Round("a"), at_most=4)
    protocol = Protocol(training, Round("a"), Either(Round("b"), Round("c")))
    if steps == "ab":
        protocol = Protocol(training, Round("a"), Round("b"))
    node = _Node(protocol)
    node.take(steps)
    assert node._number == len(steps)  # none was refused


def test_more_than_all_places_allow_is_refused() -> None:
    protocol = Protocol(Repeat(Round("a"), at_most=4), Maybe(Round("a")), Round("b"))
    _Node(protocol).take("aaaaab")
    with pytest.raises(UnexpectedMessageError, match="next may come"):
        _Node(protocol).take("aaaaaa")
    with pytest.raises(UnexpectedMessageError, match="it may come 2 times"):
        _Node(Protocol(Repeat(Round("a"), at_most=2), Round("b"))).take("aaa")


def test_an_arbiter_releases_as_many_sums_as_there_may_be() -> None:
    """It cannot tell which round a sum is of, nor how many samples there are."""
    training = Repeat(Round("x"), Round("y"), Round("z"), at_most=20)
    of_rows = Repeat(Round("x"), at_most="ceil(n_samples / 1000)")
    known = Protocol(training, Round("b", ask=ARBITER), Repeat(Round("x"), at_most=2))
    _Node(known, "arbiter").take("r" * 60 + "brr")
    with pytest.raises(UnexpectedMessageError):
        _Node(known, "arbiter").take("r" * 60 + "brrr")
    _Node(Protocol(training, of_rows), "arbiter").take("r" * 90)


def test_a_round_that_is_asked_again_writes_nothing() -> None:
    node = _Node(Protocol(Round("a", again=True), Round("b"), Round("c", writes=("key",))))
    node.take("ab")
    node.take("a")
    with pytest.raises(UnexpectedMessageError, match="may not write 'key'"):
        node.take("a", {"key": 1})


class _Further(TypedDict):
    depth: NotRequired[Annotated[int, Within(1, 8)]]


def _marked(
    trees: Annotated[int, Is("trees if forest else 0")],
    batch: Annotated[Indices, Within(0, "n_samples - 1"), DISTINCT],
    labels: Annotated[Array, Shape("batch", None)],
    names: Annotated[list[str], DISTINCT],
    widths: Annotated[list[Annotated[int, Within(0, 9)]] | None, AddsUpTo("batch")],
    **further: Unpack[_Further],
) -> None: ...


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"trees": 7}, "settings"),
        ({"batch": np.array([0, 1, 1])}, "twice"),
        ({"batch": np.array([0, 1, 5])}, "from 0 to 5"),
        ({"labels": np.zeros((2, 1))}, "shape"),
        ({"labels": np.full((3, 1), np.inf)}, "finite"),
        ({"names": ["a", "a"]}, "an item twice"),
        ({"widths": [4, -1]}, "is -1, expected 0 to 9"),
        ({"widths": [2, 2]}, "adds up to 4, expected 3"),
        ({"widths": [2, 1.0]}, "is float, expected int"),
        ({"depth": 9}, "is 9, expected 1 to 8"),
        ({"depth": "8"}, "is str, expected int"),
    ],
)
def test_arguments_are_checked_against_settings_and_each_other(
    changed: dict[str, Any], problem: str
) -> None:
    values = {"trees": 4, "batch": np.arange(3), "labels": np.zeros((3, 1)), **changed}
    values = {"names": ["a", "b"], "widths": [2, 1], **values}
    facts = {"trees": 4, "forest": True, "n_samples": 5}
    assert problem in arguments_of(_marked).problem(values, facts)
    assert bool(problem) == bool(arguments_of(_marked).problem(values, facts))


def test_what_a_party_has_bounds_an_argument_too() -> None:
    check_fits("bank", "rows", np.zeros((2, 3)), Shape(2, None), Within(0, 1))
    with pytest.raises(ProtocolError, match=r"'bank': argument 'rows' has shape \(2,\), expected"):
        check_fits("bank", "rows", np.zeros(2), Shape(3))
