"""The baselines against pandas."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical import Result, simulate
from flwr_vertical.errors import PartyError
from strategies.baselines import Max, Mean, Min, MostFrequent


def tables():
    one = pd.DataFrame(
        {
            "x": [1.0, np.nan, 4.0, -2.0, 4.0],
            "visits": [3.0, 1.0, np.nan, 1.0, 8.0],
            "colour": ["red", None, "blue", "blue", "red"],
            "flag": pd.array([True, None, False, True, True], dtype="boolean"),
        },
        index=list("abcde"),
    )
    return {"one": one, "two": pd.DataFrame({"y": [0.5, 1.5, 4.0]}, index=list("bdf"))}


@pytest.mark.parametrize(
    ("strategy", "x", "visits", "y"),
    [(Mean, 1.75, 3.25, 2.0), (Min, -2, 1, 0.5), (Max, 4, 8, 4.0), (MostFrequent, 4, 1, 0.5)],
)
def test_each_column_has_one_value(strategy, x, visits, y):
    result = simulate(strategy(), tables())
    one, two = result.tables["one"], result.tables["two"]
    assert one.loc["b", "x"] == x
    assert one.loc["c", "visits"] == visits
    # Of levels all baselines take the most frequent one; red and blue tie, the first wins.
    assert one.loc["b", "colour"] == "blue"
    assert one.loc["b", "flag"] == True  # noqa: E712
    assert one.loc["f"].tolist() == [x, visits, "blue", True]
    assert list(one.index) == list("abcdef")
    assert list(two.index[:3]) == list("bdf")
    assert sorted(two.index) == list("abcdef")
    assert (two.loc[list("ace"), "y"] == y).all()
    assert result.ledger.rounds == 3
    assert result.metrics["cells_imputed"] == 4 + 4 + 3


def test_only_cells_of_own_rows_where_blocks_are_not_completed():
    result = simulate(Mean(complete_blocks=False), tables())
    assert list(result.tables["one"].index) == list("abcde")
    pd.testing.assert_frame_equal(result.tables["two"], tables()["two"])
    assert result.party_metrics["one"]["cells_imputed"] == 4
    assert result.party_metrics["two"]["cells_imputed"] == 0


@pytest.mark.parametrize("strategy", [Mean, Min, MostFrequent])
def test_a_column_without_a_value_in_the_rows_that_take_part(strategy):
    parties = tables()
    parties["one"].loc[list("bd"), "x"] = np.nan
    with pytest.raises(PartyError, match="'one', column 'x': no row that takes part has a value"):
        simulate(strategy(), parties, align_rows="intersection")


def test_new_rows_take_the_value_of_the_earlier_ones():
    new = {name: table.set_axis([f"{i}2" for i in table.index]) for name, table in tables().items()}
    new["one"]["x"] += 100
    result = simulate(Mean(), new, fitted=tables())
    assert result.tables["one"].loc["b2", "x"] == 1.75
    assert result.tables["one"].loc["a2", "x"] == 101.0
    assert sorted(result.tables["one"].index) == sorted(f"{i}2" for i in "abcdef")
    assert result.ledger.rounds == 4


@pytest.mark.parametrize(
    "alignment", ["private-id", pytest.param("kkrt", marks=pytest.mark.slow), "blind-rsa"]
)
def test_integer_ids_stay_integers_where_completed_samples_have_no_name(alignment, tmp_path):
    one = pd.DataFrame({"x": np.arange(5.0)}, index=np.arange(10, 15))
    two = pd.DataFrame({"y": np.arange(3.0)}, index=[-7, 13, 14])
    result = simulate(Mean(), {"one": one, "two": two}, alignment=alignment)
    assert [table.index.dtype for table in result.tables.values()] == ["int64", "int64"]
    assert result.tables["one"].index[:5].tolist() == one.index.tolist()
    assert (result.tables["one"].index[5:] < 0).all()
    assert result.tables["two"].index[:3].tolist() == two.index.tolist()
    assert (result.tables["two"].index[3:] < -7).all()
    assert result.tables["two"].index.is_unique
    result.save(tmp_path)  # as a party on a node of its own does
    new = {name: table.set_axis(table.index + 100) for name, table in (("one", one), ("two", two))}
    again = simulate(Mean(), new, fitted=Result.load(tmp_path), alignment=alignment)
    assert len(again.tables["one"]) == 6


def test_public_integer_ids_of_others_may_need_more_bits():
    one = pd.DataFrame({"x": np.arange(2.0)}, index=pd.Index([1, 2], dtype="int32"))
    two = pd.DataFrame({"y": np.arange(2.0)}, index=[2, 2**40])
    result = simulate(Mean(), {"one": one, "two": two})
    assert result.tables["one"].index.tolist() == [1, 2, 2**40]


def test_own_whole_numbers_stay_as_they_are():
    account = np.array([2**60 + 1, 2**60 + 3, 5])
    one = pd.DataFrame({"account": account, "x": [1.0, np.nan, 3.0]}, index=list("abc"))
    two = pd.DataFrame({"y": [1.0, 2.0, 3.0]}, index=list("abd"))
    result = simulate(Mean(), {"one": one, "two": two})
    assert result.tables["one"]["account"].dtype == "int64"
    assert result.tables["one"]["account"].iloc[:3].tolist() == account.tolist()
