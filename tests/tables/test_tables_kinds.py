import decimal

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import Kind, infer_kinds, is_discrete, is_numeric
from flwr_vertical.tables.kinds import refuse_dates


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


@pytest.mark.parametrize(
    "values",
    [
        pd.to_timedelta([1, 2], unit="s"),
        np.array([1j, 2]),
        pd.Series([1, "a"], dtype=object),
        pd.Series([b"a", b"b"], dtype=object),
        pd.Series([decimal.Decimal(1), decimal.Decimal(2)], dtype=object),
        pd.period_range("2020", periods=2, freq="Y"),
    ],
)
def test_refuses_values_without_a_kind(values):
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
    kinds = infer_kinds(
        frame, {"region": "categorical", "grade": Kind.ORDINAL, "n": "count", "s": "continuous"}
    )
    assert kinds == {
        "region": Kind.CATEGORICAL,
        "grade": Kind.ORDINAL,
        "n": Kind.COUNT,
        "s": Kind.CONTINUOUS,
    }
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
    frame = pd.DataFrame(
        {
            "i": [-1, 0, 1],
            "f": [0.5, 1, 2],
            "s": ["a", "b", "c"],
            "o": pd.Categorical([1, 2, 3], ordered=True),
        }
    )
    with pytest.raises(ConfigError, match=message):
        infer_kinds(frame, overrides, party="bank")


def test_groups_of_kinds():
    assert [k for k in Kind if is_numeric(k)] == [Kind.CONTINUOUS, Kind.COUNT]
    assert [k for k in Kind if not is_discrete(k)] == [Kind.CONTINUOUS, Kind.DATE]
    assert is_numeric("count")
    assert not is_numeric("binary")
