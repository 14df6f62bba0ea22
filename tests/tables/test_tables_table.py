import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import Kind, Table

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
        ([SECRET, None, "b", "c"], "1 rows without a sample ID"),
        ([1.0, 2.0, 3.0, 4.0], "type 'floating'"),
        ([1, SECRET, 3, 4], "type 'mixed-integer'"),
        ([True, False, 2, 3], "type 'mixed-integer'"),
        (pd.date_range("2020-01-01", periods=4), "type 'datetime64'"),
        (pd.MultiIndex.from_tuples([(1, SECRET)] * 2 + [(2, "b"), (3, "b")]), "1 rows whose"),
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
        ([[1, 2]], "must be a pandas DataFrame indexed by sample ID, got list"),
        (pd.Series([1, 2]), "got Series"),
        (pd.DataFrame(index=[1, 2]), "2 rows and 0 columns"),
        (pd.DataFrame({"x": []}), "0 rows and 1 columns"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "same name: x"),
        (pd.DataFrame([[1, 2]], columns=["x", 3]), r"no strings or empty: \[3\]"),
        (pd.DataFrame([[1, 2]], columns=["x", ""]), "no strings or empty"),
        (frame(x=[1, 2, 3], y=[None] * 3, z=[np.nan] * 3), "observed value: y, z; drop them"),
        (frame(x=[1, 2, 3], y=[np.inf, -np.inf, 1]), r"infinite values in y \(2\)"),
        (frame(x=pd.array([1, np.inf, None], "Float64"))[["x"]][:0], "0 rows"),
    ],
)
def test_refuses_data(data, message):
    with pytest.raises(DataError, match=message) as caught:
        Table.of(data, party="bank")
    assert "party 'bank'" in str(caught.value)


def test_refuses_infinities_in_nullable_columns_and_bad_kinds():
    data = pd.DataFrame({"x": pd.array([1.0, np.inf, None], dtype="Float64")})
    with pytest.raises(DataError, match=r"the table has infinite values in x \(1\)"):
        Table.of(data)
    with pytest.raises(ConfigError, match="column 'y' of party 'bank'"):
        Table.of(frame(), {"y": "count"}, party="bank")
