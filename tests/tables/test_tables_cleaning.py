"""What an owner changes in a table as it is read: missing marks, columns, form of sample IDs."""

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import Cleaning, Table, label_numbers, read_table
from flwr_vertical.tables.ids import normal_index

CSV = """id;income;age;note;city
 007 ;1.234,50;-999;a;Bern
 012 ;-999,00;44;b;unknown
 100 ;3,5;0;c;Genf
"""


def cleaning(**keys):
    return Cleaning.of_node_config({key.replace("_", "-"): value for key, value in keys.items()})


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_marks_columns_and_ids(tmp_path, form):
    path = tmp_path / f"bank.{form}"
    if form == "csv":
        path.write_text(CSV)
    else:
        columns = {"income": [1234.5, -999.0, 3.5], "age": [-999, 44, 0], "note": ["a", "b", "c"]}
        columns["city"] = pd.Categorical(["Bern", "unknown", "Genf"])
        frame = pd.DataFrame(columns, index=pd.Index([" 007 ", " 012 ", " 100 "], name="id"))
        frame.to_parquet(path)
    keys = {"csv.missing": "-999, unknown", "missing.age": 0, "drop-columns": "note"}
    found = Cleaning.of_node_config({**keys, "normalise-ids": "strip,unpad"})
    table = read_table(path, cleaning=found)
    assert table.columns == ["income", "age", "city"]
    assert table.ids.tolist() == [7, 12, 100]
    np.testing.assert_array_equal(table.frame["income"], [1234.5, np.nan, 3.5])
    np.testing.assert_array_equal(table.frame["age"], [np.nan, 44, np.nan])
    assert table.frame["city"].isna().tolist() == [False, True, False]
    assert all(one.column in ("", *table.columns) for one in table.reading)


@pytest.mark.parametrize(
    ("steps", "ids", "expected"),
    [
        (["strip", "casefold"], [" A1", "b2 "], ["a1", "b2"]),
        (["unpad"], ["007", "0"], [7, 0]),
        (["unpad"], ["00A7", "B7"], ["A7", "B7"]),
        (["pad-4"], [7, 12345], ["0007", "12345"]),
        (["pad-4"], ["7", "A7"], ["0007", "A7"]),
        (["nfc"], ["e\u0301"], ["\u00e9"]),
    ],
)
def test_forms_of_ids(steps, ids, expected):
    assert normal_index(pd.Index(ids, name="id"), steps).tolist() == expected


def test_composite_and_blank_ids():
    index = pd.MultiIndex.from_tuples([(" a", "01"), ("b ", "02")], names=["x", "y"])
    assert normal_index(index, ["strip", "unpad"]).tolist() == [("a", 1), ("b", 2)]
    assert normal_index(pd.Index(["a", "  "]), ["strip"]).isna().tolist() == [False, True]


def test_errors_name_the_key(tmp_path):
    path = tmp_path / "bank.csv"
    path.write_text(CSV)
    for keys, key in [({"drop-columns": "notes"}, "drop-columns"), ({"missing.x": 0}, "missing.x")]:
        with pytest.raises(DataError, match=f"which {key} of the node config names; there are inc"):
            read_table(path, cleaning=Cleaning.of_node_config(keys))
    with pytest.raises(ConfigError, match=r"node config normalise-ids = 'stirp'.*'pad-8"):
        cleaning(normalise_ids="stirp")


def test_labels_of_two_classes():
    labels = pd.Series(["yes", None, "no", "yes"], index=list("abcd"))
    found = label_numbers(labels, "yes", "the labels")
    np.testing.assert_array_equal(found, [1, np.nan, 0, 1])
    assert found.index.tolist() == list("abcd")
    np.testing.assert_array_equal(label_numbers(pd.Series([1, 2, np.nan]), "2", ""), [0, 1, np.nan])
    repeated = pd.Series(["yes", None, "no"], index=list("aab"))  # is refused later, in words
    np.testing.assert_array_equal(label_numbers(repeated, "yes", ""), [1, np.nan, 0])
    long = pd.Series([1000001, 1000002])
    np.testing.assert_array_equal(label_numbers(long, "1000002", ""), [0, 1])
    np.testing.assert_array_equal(label_numbers(pd.Series(["0", "1"]), "", ""), [0, 1])
    with pytest.raises(DataError, match=r"^the labels must be numbers, got dtype datetime64"):
        label_numbers(pd.Series(pd.to_datetime(["2020-01-01", None])), "", "the labels")
    with pytest.raises(DataError, match=r"^the labels must be a pandas Series.*got list"):
        label_numbers([0, 1], "", "the labels")
    np.testing.assert_array_equal(label_numbers(pd.Series([True, False]), "", ""), [1, 0])
    np.testing.assert_array_equal(label_numbers(pd.Series([True, False]), "False", ""), [0, 1])
    with pytest.raises(DataError, match=r"2 classes 'no', 'yes'; state positive-label"):
        label_numbers(labels, "", "the labels")
    with pytest.raises(DataError, match=r"'Yes' is no class of the labels.* classes 'no', 'yes'"):
        label_numbers(labels, "Yes", "the labels")
    with pytest.raises(DataError, match=r"3 classes 'a', 'b', 'c'; number the classes"):
        label_numbers(pd.Series(["a", "b", "c"]), "a", "the labels")


@pytest.mark.parametrize("dtype", ["float64", "Float64", object])
def test_ids_that_are_whole_floats_are_integers(dtype):
    values = pd.Index([3.0, 12.0, 0.0], name="id").astype(dtype)
    found = Table.of(pd.DataFrame({"x": [1.0, 2.0, 4.0]}, index=values), party="bank").ids
    assert found.tolist() == [3, 12, 0]
    assert found.dtype == np.int64
    with pytest.raises(DataError, match="'floating', expected all integers"):
        Table.of(pd.DataFrame({"x": [1.0, 2.0]}, index=[0.5, 1.0]), party="bank")


def test_unpad_writes_decimals_as_integers():
    made = normal_index(pd.Index(["12.0", "007.00", "0.0", "40"]), ["unpad"])
    assert made.tolist() == [12, 7, 0, 40]
    assert normal_index(pd.Index(["1.5", "a.0", "v1.0"]), ["unpad"]).tolist() == [
        "1.5",
        "a.0",
        "v1.0",
    ]
