"""What a run spends: the paper's count, and basic composition over comparisons."""

import pytest

from flwr_vertical.privacy import ColumnSpending, PrivacyStatement, split_budget


def statement(**settings):
    columns = [
        ColumnSpending("bank", 100, 0.5, 0.5, **settings),
        ColumnSpending("bank", 100, 0.5, 0.5, **settings),
        ColumnSpending("court", 50, 1.0, 0.25, **settings),
    ]
    return PrivacyStatement(columns)


def test_theorem_4_adds_up_columns_and_parties():
    found = statement()
    assert found.vdadp == {"bank": 2.0, "court": 1.25}
    assert found.to_frame().loc["all", "epsilon"] == 3.25


def test_corollary_4_counts_every_release_of_ranks():
    assert statement(releases=10).vdadp == {"bank": 2 * (10 * 0.5 + 0.5), "court": 10.25}


def test_basic_composition_counts_every_comparison_of_a_record():
    assert statement().record == {"bank": 2 * (99 * 0.5 + 0.5), "court": 49 * 1.0 + 0.25}


def test_the_statement_says_both_and_what_is_not_covered():
    text = str(statement(quantile_error=0.02, exact_range=True))
    assert "2 (bank), 1.25 (court); 3.25 in all" in text
    assert "100 (bank), 49.25 (court)" in text
    assert "not differentially private for whole records" in text
    assert "±3.9 %" in text
    assert "observed range of 3 columns was used as it is" in text
    assert "used as it is" not in str(statement())
    assert str(PrivacyStatement([])) == ""


def test_a_statement_survives_being_plain_values():
    found = PrivacyStatement(statement().columns, ["mind this"])
    again = PrivacyStatement.from_dict(found.to_dict())
    assert str(again) == str(found)
    assert again.vdadp == found.vdadp


@pytest.mark.parametrize(
    ("budget", "expected"), [("per-variable", (0.25, 0.75)), ("total", (0.0125, 0.0375))]
)
def test_budgets_are_split_as_in_theorem_1(budget, expected):
    """Five parties of 20 columns: K / (p + 1) is 1 / 20 but for the labels."""
    assert split_budget(1.0, budget, 20) == pytest.approx(expected)
    assert sum(split_budget(1.0, budget, 4, 0.8)) == pytest.approx(1 if expected[0] > 0.1 else 0.25)
