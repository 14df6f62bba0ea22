import gzip
import os
import time
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources.reading import read_source
from flwr_vertical.tables import Cleaning, Kind, Table, read_labels, read_table, write_table
from flwr_vertical.tables.id_checks import type_of_ids

SUFFIXES = [".csv", ".csv.gz", ".tsv", ".parquet", ".pq"]

words = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)
string_ids = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1)


@st.composite
def frames(draw):
    n = draw(st.integers(2, 8))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    ids = draw(
        st.lists(st.integers(-(10**17), 10**17), min_size=n, max_size=n, unique=True)
        # The letter keeps CSV from taking them for integers.
        | st.lists(string_ids.map("k{}".format), min_size=n, max_size=n, unique=True)
    )
    frame = pd.DataFrame(
        {
            "real": column(st.floats(allow_nan=True, allow_infinity=False)),
            "whole": column(st.integers(-(2**53), 2**53)),
            "flag": column(st.booleans()),
            'wörd, "quoted"': column(st.none() | words.map("w{}".format)),
        },
        index=pd.Index(ids, name="id"),
    )
    return frame.dropna(axis=1, how="all")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(frame=frames(), suffix=st.sampled_from(SUFFIXES))
def test_round_trip(frame, suffix, tmp_path_factory):
    path = write_table(frame, tmp_path_factory.getbasetemp() / f"round{suffix}")
    table = read_table(path)
    # Parquet keeps whole floats as floats; CSV writes 1.0 and reads a float as well.
    pd.testing.assert_frame_equal(table.frame, Table.of(frame).frame, check_index_type="equiv")
    assert table.ids.name == "id"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_tables_with_every_kind_of_gap(suffix, tmp_path):
    table = Table.of(
        pd.DataFrame(
            {
                "i": pd.array([1, None, 3], dtype="Int64"),
                "b": pd.array([True, None, False], dtype="boolean"),
                "s": ["x", None, "y"],
            },
            index=["007", "08", "9"],
        )
    )
    again = read_table(write_table(table, tmp_path / "new" / "folder" / f"t{suffix}"))
    pd.testing.assert_frame_equal(again.frame, table.frame, check_names=False)
    assert again.ids.name == "sample_id"
    assert again.kinds == table.kinds


def test_csv_ids_are_integers_only_if_written_so(tmp_path):
    path = tmp_path / "t.csv"
    for ids in (
        ["1", "020"], ["+1", "2"], ["1.0", "2.0"], ["-0", "2"], [" 1", "2"], ["1e3", "2"],
        ["9" * 25, "1"], ["NA", "null", "DE"], ["True", "False"], ["١", "٢"], [1, 20, -3, 0],
    ):  # fmt: skip
        path.write_text("id,x\n" + "".join(f"{name},1\n" for name in ids), encoding="utf-8")
        assert read_table(path).ids.tolist() == ids


def test_csv_marks_of_missing_cells_and_of_byte_order(tmp_path):
    path = tmp_path / "T.CSV"
    path.write_bytes(b"\xef\xbb\xbfid,x,y\n1,NA,a\n2,,null\n3,2.5,\n")
    table = read_table(path)
    assert (table.ids.name, table.columns) == ("id", ["x", "y"])
    assert table.missing.tolist() == [[True, False], [True, True], [False, True]]
    assert table.frame["x"].dtype == float


def test_id_column_columns_and_kinds(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,key,y,z\n1,7,a,3\n2,8,b,4\n5,9,c,6\n")
    table = read_table(path, id_column="key", columns=["z", "x"], kinds={"z": "categorical"})
    assert table.ids.tolist() == [7, 8, 9]
    assert table.columns == ["z", "x"]
    assert table.kinds == {"z": Kind.CATEGORICAL, "x": Kind.COUNT}
    assert read_table(path).ids.name == "x"


def test_parquet_index_or_first_column(tmp_path):
    path = tmp_path / "t.parquet"
    frame = pd.DataFrame({"key": ["a", "b"], "x": [1, 2], "k2": [5, 6]})
    frame.to_parquet(path)  # row numbers are no IDs
    assert read_table(path).ids.tolist() == ["a", "b"]
    assert read_table(path, id_column="k2").columns == ["key", "x"]
    frame.set_index("key").to_parquet(path)
    assert read_table(path).ids.tolist() == ["a", "b"]
    assert read_table(path, id_column="key").ids.tolist() == ["a", "b"]
    assert read_table(path, id_column="k2").columns == ["key", "x"]
    frame.set_axis([8, 3]).to_parquet(path)  # a nameless index that is more than row numbers
    assert read_table(path).ids.tolist() == [8, 3]
    assert read_table(path, id_column="key").columns == ["x", "k2"]
    frame.rename_axis("row").to_parquet(path)
    assert read_table(path).ids.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id_column": "key"}, "no column 'key' for the sample IDs; there are .*x, y"),
        ({"columns": ["x", "w", "v"]}, "no columns 'w', 'v'; there are x, y"),
    ],
)
def test_refuses_columns_that_are_not_there(suffix, options, message, tmp_path):
    path = tmp_path / f"t{suffix}"
    write_table(pd.DataFrame({"x": [1, 2], "y": [3, 4]}), path)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, **options)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx", "tables"])
def test_a_path_that_is_not_there_is_said_to_be_missing(name, tmp_path):
    with pytest.raises(DataError, match=f"{name} does not exist; the path is taken from"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"", "unknown suffix, expected one of .csv, .csv.gz, .tsv, .parquet, .pq"),
        ("t.csv", b"", "no header"),
        ("t.csv", b"id,x,y,x\n1,2,3,4\n", "several columns named 'x'"),
        ("t.csv", b"id,x\n", "0 rows"),
        ("t.csv", b"id\n1\n", "0 columns besides the sample ID"),
        ("t.csv", b"id,x\n1,2,3\n4,5,6\n", "cannot be read as CSV"),
        ("t.csv", b"id,x\n1,2\n4,5,6\n", "cannot be read as CSV"),
        ("t.csv", b'id,x\n1,"2\n', "cannot be read as CSV"),
        ("t.csv", b"id,x\nk-4711,2\nk-4711,3\n", "1 row whose sample ID repeats"),
        ("t.csv", b"id,x\nk-4711,2\n,3\n", "1 row without a sample ID"),
        ("t.csv", b"id,x,y\n1,2,\n2,3,\n", "without a single observed value: y"),
        ("t.csv", b"id,x\n1,inf\n2,3\n", r"infinite values in x \(1\)"),
        ("t.csv.gz", b"id,x\n1,2\n", "cannot be read as CSV"),
        ("t.csv.gz", gzip.compress(b"id,x\n1,2\n" * 99, mtime=0)[:-12], "cannot be read as CSV"),
        ("t.parquet", b"id,x\n1,2\n", "cannot be read as PARQUET"),
        ("t.pq", b"", "cannot be read as PARQUET"),
    ],
)
def test_refuses_files(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, party="bank")
    assert str(path) in str(caught.value)
    assert "4711" not in str(caught.value)


def test_refuses_absent_files_and_folders(tmp_path):
    with pytest.raises(DataError, match=r"absent\.csv does not exist"):
        read_table(tmp_path / "absent.csv")
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path / "folder.parquet")
    with pytest.raises(DataError, match="is a folder"):
        write_table(pd.DataFrame({"x": [1]}), tmp_path / "folder.parquet")
    path = write_table(pd.DataFrame({"x": [1, 2]}), tmp_path / "t.csv")
    with pytest.raises(ConfigError, match="'y' of party 'bank'"):
        read_table(path, kinds={"y": "count"}, party="bank")


def test_labels(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("id,y\n01,1.5\n02,\n03,2\n")
    labels = read_labels(path)
    assert labels.name == "y"
    assert labels.index.tolist() == ["01", "02", "03"]
    np.testing.assert_array_equal(labels, [1.5, np.nan, 2])
    path.write_text("y,id,t\n1,7,a\n0,8,b\n")
    assert read_labels(path, id_column="id", column="t").to_dict() == {7: "a", 8: "b"}
    with pytest.raises(DataError, match=r"2 columns besides the sample ID.*y, t"):
        read_labels(path, id_column="id")
    with pytest.raises(DataError, match="no column 'q'; there are y, t"):
        read_labels(path, id_column="id", column="q")
    path.write_text("id,y\n1,\n2,\n")
    with pytest.raises(DataError, match="observed value: y") as caught:
        read_labels(path)
    assert str(path) in str(caught.value)


def test_writing_is_atomic(tmp_path, monkeypatch):
    path = write_table(pd.DataFrame({"x": [1, 2]}), tmp_path / "t.csv")
    before = path.read_bytes()
    monkeypatch.delattr(os, "replace")
    with pytest.raises(AttributeError, match="replace"):
        write_table(pd.DataFrame({"x": [3, 4]}), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_writing_replaces_and_repeats_itself(tmp_path, monkeypatch):
    frame = pd.DataFrame({"x": np.linspace(0, 1, 7)}, index=list("abcdefg"))
    first = write_table(frame * 2, tmp_path / "t.csv.gz")
    write_table(frame, first)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    second = write_table(frame, tmp_path / "other" / "t.csv.gz")
    assert first.read_bytes() == second.read_bytes()
    pd.testing.assert_frame_equal(read_table(first).frame, frame, check_names=False)


def test_writing_refuses(tmp_path):
    for frame, name, why in (
        (pd.DataFrame({"x": [1]}), "t.txt", "unknown suffix"),
        (pd.DataFrame({"sample_id": [1]}), "t.csv", "column named 'sample_id' like its index"),
        (pd.DataFrame({"x": [1, 2]}, index=["a", "a"]), "t.csv", "sample ID repeats"),
    ):
        with pytest.raises(DataError, match=why):
            write_table(frame, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_levels_of_a_parquet_index_can_be_named_as_id_columns(tmp_path):
    index = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["first", "last"])
    pd.DataFrame({"x": [1.0, 2.0]}, index=index).to_parquet(tmp_path / "t.parquet")
    for id_column in (None, "first,last"):
        table = read_table(tmp_path / "t.parquet", id_column=id_column)
        assert list(table.ids) == ["1|a", "2|b"]
        assert table.columns == ["x"]
    assert list(read_table(tmp_path / "t.parquet", id_column="last").ids) == ["a", "b"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_first_column_without_a_name_holds_the_ids(tmp_path, suffix):
    """As pandas writes an index without a name."""
    path = tmp_path / f"t{suffix}"
    separator = "," if suffix == ".csv" else "\t"
    frame = pd.DataFrame({"x": [1.5, 2.5], "town": ["Ulm", "NA "]}, index=["007", "NA"])
    frame.to_csv(path, sep=separator)
    read = read_table(path).frame
    assert list(read.index) == ["007", "NA"]
    assert list(read.columns) == ["x", "town"]
    numbered = frame.reset_index(drop=True)
    numbered.to_csv(path, sep=separator)
    assert read_table(path).frame.index.tolist() == [0, 1]
    numbered[["x"]].to_csv(path, sep=separator)
    assert read_labels(path).tolist() == [1.5, 2.5]


def test_other_columns_without_a_name_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,x,,y\na,1,2,3\n")
    with pytest.raises(DataError, match=r"t\.csv: column number 3 has no name"):
        read_table(path)
    path.write_text(",id,x\n0,a,1\n1,b,2\n")
    with pytest.raises(DataError, match="first column has no name, and the sample IDs are in 'id'"):
        read_table(path, id_column="id")


def test_decimals_and_dates_of_a_parquet_file_are_read_as_those_of_a_folder(tmp_path):
    amounts = [Decimal("1.25"), None, Decimal("-3.50")]
    days = [date(2024, 1, 1), date(1969, 12, 31), None]
    columns = {
        "id": ["a", "b", "c"],
        "amount": pa.array(amounts, pa.decimal128(20, 2)),
        "day": days,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.kinds == {"amount": Kind.CONTINUOUS, "day": Kind.DATE}
    np.testing.assert_array_equal(table.frame["amount"], [1.25, np.nan, -3.5])
    counted = read_table(tmp_path / "t.parquet", csv={"dates": "days"})
    np.testing.assert_array_equal(counted.frame["day"], [19723.0, -1.0, np.nan])
    pd.testing.assert_frame_equal(counted.frame, read_source(tmp_path, dates="days").frame)


def test_a_file_of_one_column_is_refused_by_its_separator(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("sep=;\nid;x;y\na;1;2\nb;2;3\n")
    with pytest.raises(DataError, match=r"split at ',', its only one is 'sep=;'.*separator"):
        read_table(path)
    path.write_text("id,x\na,1\nb,2\n")
    with pytest.raises(DataError, match=r"split at ';', its only one is 'id,x'"):
        read_table(path, csv={"separator": ";"})


def test_ids_that_a_parquet_file_has_as_a_dictionary_are_read_as_their_values(tmp_path):
    frame = pd.DataFrame({"id": pd.Categorical([" 07", "b", "c"]), "x": [1.0, 2.0, 3.0]})
    (tmp_path / "parts").mkdir()
    frame.to_parquet(tmp_path / "parts" / "1.parquet")
    frame.set_index("id").to_parquet(tmp_path / "t.parquet")
    stripped = Cleaning.of_node_config({"normalise-ids": "strip,unpad"})
    for path in (tmp_path / "t.parquet", tmp_path / "parts"):
        assert read_source(path).ids.tolist() == [" 07", "b", "c"]
        cleaned = read_source(path, cleaning=stripped)
        assert cleaned.ids.tolist() == ["7", "b", "c"]
        assert cleaned.ids.name == "id"
        assert type_of_ids(frame.set_index("id").index) == "text"
    assert read_labels(tmp_path / "t.parquet").index.tolist() == [" 07", "b", "c"]
    numbered = frame.assign(id=pd.Categorical([7, 5, 6]))
    numbered.to_parquet(tmp_path / "n.parquet")
    assert read_table(tmp_path / "n.parquet").ids.tolist() == [7, 5, 6]
    twice = Table.of(numbered.assign(k="a|").set_index(["id", "k"]))
    assert twice.ids.tolist() == ["7|a\\|", "5|a\\|", "6|a\\|"]
    numbered.loc[0, "id"] = None
    with pytest.raises(DataError, match="1 row without a sample ID"):
        Table.of(numbered.set_index("id"))
