"""A party's own page: it names the party, and shows the rows that it got."""

import pandas as pd
import pytest
from test_results_page import Checker

from flwr_vertical.reports.report import report_html
from flwr_vertical.result import Result


@pytest.fixture
def tables():
    before = pd.DataFrame({"x": [1.0, None, 3.0], "y": [1.0, 2.0, 3.0]}, index=["a", "b", "c"])
    after = pd.concat(
        [before.fillna(9.0), pd.DataFrame({"x": [7.5], "y": [8.5]}, index=["aligned-3"])]
    )
    return before, after


def page(before, after):
    tables = {} if after is None else {"bank": after}
    result = Result("fknn", parties=["bank"], originals={"bank": before}, tables=tables, name="r7")
    return " ".join(Checker(report_html(result, party="bank")).text)


def test_it_names_the_party_and_shows_the_rows_it_got(tables):
    text = page(*tables)
    assert "bank: fknn" in text
    assert "party report · r7" in text
    assert "Party 'bank' gave 3 rows of 2 columns; 1 of its missing cells are filled in" in text
    assert "it got 1 rows that only others had" in text
    assert "Rows that it got" in text
    assert "aligned-3" in text
    assert "16.7%" in text  # one of six cells


def test_synthetic_rows_are_called_so(tables):
    before, _ = tables
    text = page(before, pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]}, index=["s1", "s2"]))
    assert "got 2 synthetic rows" in text
    assert "Rows that it got" in text


def test_without_a_new_table_there_are_none(tables):
    before, _ = tables
    assert "its table is unchanged" in page(before, None)
    text = page(before, before.fillna(0.0))
    assert "Rows that it got" not in text
