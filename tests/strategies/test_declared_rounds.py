"""What recorded runs exchanged is what protocols declare, and what documentation lists."""

import pytest

from apps.cli.rounds import UNDECLARED, protocols_of, round_rows
from apps.cli.strategies import describe_strategy
from apps.pages import strategy_section
from flwr_vertical import Party, Strategy, register_strategy
from flwr_vertical.alignment.registry import aligner_class
from flwr_vertical.node.service import HELLO
from flwr_vertical.protocol.declaration import ALL, ARBITER, FACTS, Protocol, Repeat, Round
from tests.kit.cases import CASES, class_of, recorded


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_run_took_the_steps_that_its_protocol_declares(case):
    run = recorded(case)
    protocol = run.strategy.protocol_of_run().chosen({"aggregation": run.mode, "n_parties": 2})
    aligner = aligner_class(run.result.settings["alignment"])
    before = {HELLO, "labels", *aligner.steps.protocol.steps}
    taken = set(run.result.ledger.to_frame()["step"]) - before
    assert taken, case
    assert taken <= set(protocol.steps)
    # What stands outside repetitions and choices comes in every run.
    always = {one.step for one in protocol.parts if isinstance(one, Round) and one.ask == ALL}
    assert always <= taken
    described = {row.step for _, declared in protocols_of(class_of(case))
                 for row in round_rows(declared)}  # fmt: skip
    assert case.startswith("predict") or taken <= described


def test_rounds_are_listed_with_choices_and_repetitions_in_words():
    protocol = Protocol(
        Round("begin", "names", tells=FACTS),
        Repeat(Round("go", "sums"), at_most="epochs"),
        Repeat(Round("end", ask=ARBITER), at_most=1),
    )
    assert [(row.step, row.asked, row.when) for row in round_rows(protocol)] == [
        ("begin", "all parties", ""),
        ("go", "all parties", "at most `epochs` times"),
        ("end", "the arbiter", "once or not at all"),
    ]


class Undeclared(Strategy):
    """Declares no protocol."""

    name = "undeclared-rounds"
    party = Party

    def run(self, federation, alignment, result, progress):
        """Do nothing."""


def test_a_strategy_without_a_protocol_says_so():
    register_strategy("undeclared-rounds", f"{__name__}:Undeclared")
    told = " ".join(describe_strategy("undeclared-rounds").split())
    assert UNDECLARED in told


def test_pages_list_the_rounds():
    section = strategy_section("vfem")
    assert "| `open_products` | all parties |" in section
    assert "| if " in section
