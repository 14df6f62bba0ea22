"""Rounds that protocols declare, as documentation lists them; the contract compares runs."""

from apps.cli.rounds import UNDECLARED, round_rows
from apps.cli.strategies import describe_strategy
from apps.pages import strategy_section
from flwr_vertical import Party, Strategy, register_strategy
from flwr_vertical.protocol.declaration import ARBITER, FACTS, Protocol, Repeat, Round


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
