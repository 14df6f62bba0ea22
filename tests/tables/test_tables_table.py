"""Tables in memory, and the kinds of their columns."""

import dataclasses
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import Kind, Table, infer_kinds, is_discrete, is_numeric
from flwr_vertical.tables.codes import level_numbers
from flwr_vertical.tables.kinds import refuse_dates

SECRET = "patient-4711"


def frame(**columns):
    return pd.DataFrame(columns or {"x": [1.5, 2.5, np.nan]}, index=["p", "q", "r"])


def test_properties():
    data = frame(x=[1.5, np.nan, 2.0], y=["a", None, "c"])
    table = Table.of(data)
    assert table.n_samples == 3
    assert table.columns == ["x", "y"]
    assert table.kinds == {"x": Kind.CONTINUOUS, "y": Kind.BINARY}
    assert table.missing.tolist() == [[False, False], [True, True], [False, False]]
    assert table.missing.dtype == np.bool_
    assert list(table.ids) == ["p", "q", "r"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.kinds = {}


def test_shares_no_memory_with_the_data():
    data = frame()
    table = Table.of(data)
    data.loc["p", "x"] = 9.0
    assert table.frame.loc["p", "x"] == 1.5
    table.frame.loc["q", "x"] = 8.0
    assert data.loc["q", "x"] == 2.5


def test_of_a_table_keeps_its_kinds_unless_restated():
    data = pd.DataFrame({"a": [1, 2, 3], "b": [1, 2, 3]})
    table = Table.of(data, {"a": "categorical", "b": "ordinal"})
    assert Table.of(table).kinds == table.kinds
    assert Table.of(table, {"b": "count"}).kinds == {"a": Kind.CATEGORICAL, "b": Kind.COUNT}
    with pytest.raises(ConfigError, match="column 'y' of party 'bank'"):
        Table.of(frame(), {"y": "count"}, party="bank")


@pytest.mark.parametrize(
    ("column", "dtype", "values"),
    [
        (pd.array([1, None, 3], dtype="Int64"), "float64", [1, np.nan, 3]),
        (pd.array([1, 2, 3], dtype="Int64"), "int64", [1, 2, 3]),
        (pd.array([1.5, None, 3], dtype="Float64"), "float64", [1.5, np.nan, 3]),
        (pd.array([True, False, True], dtype="boolean"), "bool", [1, 0, 1]),
        (pd.array([True, None, True], dtype="boolean"), "boolean", [1, np.nan, 1]),
        (pd.Series([1, None, 3], dtype=object), "float64", [1, np.nan, 3]),
        (pd.Series([1, 2, 3], dtype=object), "int64", [1, 2, 3]),
        (pd.Series([True, pd.NA, False], dtype=object), "boolean", [1, np.nan, 0]),
        (pd.Series([1, 2.5, None], dtype=object), "float64", [1, 2.5, np.nan]),
        (pd.Series([1, None, 3], dtype=pd.ArrowDtype(pa.int32())), "float64", [1, np.nan, 3]),
        (pd.Series([1, 2, 3], dtype=pd.ArrowDtype(pa.int32())), "int64", [1, 2, 3]),
        (
            pd.Series([True, None, False], dtype=pd.ArrowDtype(pa.bool_())),
            "boolean",
            [1, np.nan, 0],
        ),
        (np.array([1, 2, 3], dtype=np.float32), "float32", [1, 2, 3]),
    ],
)
def test_plain_dtypes(column, dtype, values):
    table = Table.of(pd.DataFrame({"x": column}))
    assert table.frame["x"].dtype == dtype
    np.testing.assert_array_equal(table.frame.to_numpy(float)[:, 0], values)
    np.testing.assert_array_equal(table.missing[:, 0], np.isnan(np.asarray(values, float)))


@pytest.mark.parametrize("dtype", [object, "string", "str", pd.ArrowDtype(pa.string())])
def test_strings_stay_and_their_gaps_are_nan(dtype):
    table = Table.of(pd.DataFrame({"x": pd.Series(["a", None, "b", "c"], dtype=dtype)}))
    assert table.frame["x"].dropna().tolist() == ["a", "b", "c"]
    gap = table.frame["x"].iloc[1]
    assert isinstance(gap, float)
    assert np.isnan(gap)
    assert table.kinds["x"] is Kind.CATEGORICAL


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        ([3, 1, 2], "int64"),
        (pd.array([3, 1, 2], dtype="Int64"), "int64"),
        (pd.Index([3, 1, 2], dtype=object), "int64"),
        (np.array([3, 1, 2**63 - 1], dtype=np.uint64), "int64"),  # joins with others' integers
        (np.array([3, 1, 2], dtype=np.int32), "int32"),
        (["007", "7", ""], None),
    ],
)
def test_integer_and_string_ids(ids, kept):
    table = Table.of(pd.DataFrame({"x": [1, 2, 3]}, index=ids))
    assert list(table.ids) == list(ids)
    if kept:
        assert table.ids.dtype == kept


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([SECRET, SECRET, "b", SECRET], "2 rows whose sample ID repeats"),
        ([SECRET, None, "b", "c"], "1 row without a sample ID"),
        ([1.5, 2.0, 3.0, 4.0], "type 'floating'"),
        ([1, SECRET, 3, 4], "type 'mixed-integer'"),
        ([True, False, 2, 3], "type 'mixed-integer'"),
        (pd.date_range("2020-01-01", periods=4), "type 'datetime64'"),
        (pd.MultiIndex.from_tuples([(1, SECRET)] * 2 + [(2, "b"), (3, "b")]), "1 row whose"),
        (pd.MultiIndex.from_tuples([(1, SECRET), (1, None), (2, "b"), (3, "b")]), "lacks a part"),
        (pd.Index([1, 2, 3, 2**70], dtype=object), "beyond 64 bits"),
        (pd.Index([1, 2, 3, 2**63], dtype="uint64"), "beyond 64 bits"),
        (pd.Index([1, 2, 3, 2**63], dtype="UInt64"), "beyond 64 bits"),
    ],
)
def test_refuses_ids_without_printing_them(index, message):
    with pytest.raises(DataError, match=message) as caught:
        Table.of(pd.DataFrame({"x": [1, 2, 3, 4]}, index=index), party="bank")
    assert "party 'bank'" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, 2]], "must be a DataFrame by sample ID, see read_table, got list"),
        (pd.Series([1, 2]), "got Series"),
        (pd.DataFrame(index=[1, 2]), "2 rows and 0 columns"),
        (pd.DataFrame({"x": []}), "0 rows and 1 columns"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "same name: x"),
        (pd.DataFrame([[1, 2]], columns=["x", 3]), r"no strings or empty: \[3\]"),
        (pd.DataFrame([[1, 2]], columns=["x", ""]), "no strings or empty"),
        (frame(x=[1, 2, 3], y=[None] * 3, z=[np.nan] * 3), "observed value: y, z; drop them"),
        (frame(x=[1, 2, 3], y=[np.inf, -np.inf, 1]), r"infinite values in y \(2\)"),
        (frame(x=pd.array([1, np.inf, None], "Float64"))[["x"]][:0], "0 rows"),
        (frame(x=pd.array([1, np.inf, None], "Float64")), r"infinite values in x \(1\)"),
    ],
)
def test_refuses_data(data, message):
    with pytest.raises(DataError, match=message) as caught:
        Table.of(data, party="bank")
    assert "party 'bank'" in str(caught.value)


# -- kinds ---------------------------------------------------------------------------------------


def kind_of(values, **options):
    return infer_kinds(pd.DataFrame({"x": pd.Series(values, **options)}))["x"]


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([True, False, True], {}, "binary"),
        ([True, True], {}, "binary"),
        ([True, None, False], {"dtype": "boolean"}, "binary"),
        ([True, None, False], {"dtype": object}, "binary"),
        ([0, 1, 1], {}, "binary"),
        ([-1, 1, 1], {}, "binary"),
        ([2.0, np.nan, 7.0], {}, "binary"),
        (["no", "yes", None], {}, "binary"),
        (["no", "yes"], {"dtype": "category"}, "binary"),
        (["lo", "hi"], {"dtype": pd.CategoricalDtype(["lo", "hi"], ordered=True)}, "binary"),
        (["lo", "hi"], {"dtype": pd.CategoricalDtype(["lo", "mid", "hi"], True)}, "ordinal"),
        (["lo", "hi"], {"dtype": pd.CategoricalDtype(["lo", "mid", "hi"])}, "categorical"),
        (["a", "b", "c"], {}, "categorical"),
        (["a", "b", "c"], {"dtype": object}, "categorical"),
        (["a", "b", "c"], {"dtype": "category"}, "categorical"),
        (["a", "a"], {}, "categorical"),
        ([3, 1, 2], {"dtype": pd.CategoricalDtype([1, 2, 3], ordered=True)}, "ordinal"),
        ([0, 1, 2], {}, "count"),
        ([0, None, 2, 3], {"dtype": "Int64"}, "count"),
        ([0.0, np.nan, 2.0, 9.0], {}, "count"),
        ([4, 4], {}, "count"),
        ([-1, 0, 1], {}, "continuous"),
        ([0.5, 1.0], {}, "continuous"),
        ([0.5, 1.5, 2], {"dtype": "Float64"}, "continuous"),
        ([1, 2.5, None], {"dtype": object}, "continuous"),
    ],
)
def test_inference(values, options, expected):
    assert kind_of(values, **options) is Kind(expected)


def test_refuses_values_without_a_kind():
    for values in (
        pd.to_timedelta([1, 2], unit="s"), np.array([1j, 2]), pd.Series([1, "a"], dtype=object),
        pd.Series([b"a", b"b"], dtype=object), pd.period_range("2020", periods=2, freq="Y"),
        pd.Series([decimal.Decimal(1), decimal.Decimal(2)], dtype=object),
    ):  # fmt: skip
        frame = pd.DataFrame({"fine": [1, 2], "when": values})
        with pytest.raises(DataError, match="column 'when' of party 'bank' holds values of type"):
            infer_kinds(frame, party="bank")
        with pytest.raises(DataError, match="column 'when' holds"):
            infer_kinds(frame, {"when": "categorical"})


def test_points_in_time_are_dates_and_refused_by_name_where_a_method_takes_none():
    times = pd.to_datetime(["2020-01-01", None, "2020-01-02"])
    for dates in (times, times.tz_localize("Europe/Berlin"), times.astype("datetime64[s]")):
        kinds = infer_kinds(pd.DataFrame({"x": [1.5, 2, 3], "when": dates}), party="bank")
        assert kinds["when"] is Kind.DATE
        with pytest.raises(DataError, match=r"'when' of party 'bank' holds dates.*csv\.dates"):
            refuse_dates(kinds, "bank")
    frame = pd.DataFrame({"when": times, "x": [1.5, 2, 3]})
    assert not is_discrete(Kind.DATE)
    assert not is_numeric(Kind.DATE)
    refuse_dates(infer_kinds(frame[["x"]]))
    assert infer_kinds(frame, {"when": "date"})["when"] is Kind.DATE
    with pytest.raises(ConfigError, match="'when' is stated to be count but holds points in time"):
        infer_kinds(frame, {"when": "count"})
    with pytest.raises(ConfigError, match="'x' is stated to be date but holds none"):
        infer_kinds(frame, {"x": "date"})


def test_overrides():
    frame = pd.DataFrame({"region": [1, 2, 3], "grade": [1, 2, 3], "n": [0, 1, 0], "s": [1, 2, 9]})
    given = {"region": "categorical", "grade": Kind.ORDINAL, "n": "count", "s": "continuous"}
    assert infer_kinds(frame, given) == {name: Kind(kind) for name, kind in given.items()}
    assert list(infer_kinds(frame, {"s": "count"})) == ["region", "grade", "n", "s"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"y": "count"}, "column 'y' of party 'bank' .* the columns are i, f, s, o"),
        ({"i": "nominal"}, "'nominal'; valid are continuous, binary, categorical, ordinal, count"),
        ({"s": "continuous"}, "continuous but holds labels"),
        ({"s": "count"}, "count but holds labels"),
        ({"f": "count"}, "not whole and non-negative"),
        ({"i": "count"}, "not whole and non-negative"),
        ({"i": "binary"}, "binary but has 3 distinct values"),
        ({"s": "ordinal"}, "labels without an order"),
    ],
)
def test_overrides_that_cannot_be(overrides, message):
    frame = pd.DataFrame({"i": [-1, 0, 1], "f": [0.5, 1, 2], "s": ["a", "b", "c"]})
    frame["o"] = pd.Categorical([1, 2, 3], ordered=True)
    with pytest.raises(ConfigError, match=message):
        infer_kinds(frame, overrides, party="bank")


def test_groups_of_kinds():
    assert [k for k in Kind if is_numeric(k)] == [Kind.CONTINUOUS, Kind.COUNT]
    assert [k for k in Kind if not is_discrete(k)] == [Kind.CONTINUOUS, Kind.DATE]
    assert is_numeric("count")
    assert not is_numeric("binary")


@pytest.mark.parametrize("levels", [[False, True], ["0", "1"], ["False", "True"], [0.0, 1.0]])
def test_levels_of_two_kinds_are_known_in_every_spelling(levels):
    cells = pd.Series([True, "True", 1, "1", 1.0, 0, "False", None, "maybe"], dtype=object)
    assert level_numbers(cells, levels).tolist() == [1, 1, 1, 1, 1, 0, 0, -1, -1]


def test_levels_that_are_whole_numbers_are_known_as_texts_of_floats():
    cells = pd.Series(["3.0", 3.0, "3", "04", "4.0", "3.5", "x.0"], dtype=object)
    assert level_numbers(cells, [3, 4.0, "x"]).tolist() == [0, 0, 0, -1, 1, -1, -1]
    assert level_numbers(cells[:3], ["3", "3.0"]).tolist() == [1, 0, 0]  # told apart by the fit
