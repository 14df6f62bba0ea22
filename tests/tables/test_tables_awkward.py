"""Awkward CSV files: each is read right, or there is a warning that says what to do."""

import csv
import gzip
import time

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.tables import (
    Cleaning,
    CsvFormat,
    DataWarning,
    Kind,
    Severity,
    Table,
    check_table,
    read_labels,
    read_table,
)

N = 24
AMOUNTS = np.round(np.random.default_rng(0).uniform(1000, 9_999_999, N), 2)


def write(path, header, *columns, separator=",", encoding="utf-8"):
    """Write a file of texts; the first column is the ID."""
    lines = [separator.join(header)]
    for i in range(N):
        cells = [f"k{i}", *(column[i % len(column)] for column in columns)]
        lines.append(separator.join(f'"{c}"' if separator in c else c for c in cells))
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.csv"


def grouped(values, thousands, decimal):
    """Write numbers with marks, by Python's own formatting."""
    swap = str.maketrans({",": thousands, ".": decimal})
    return [f"{value:,.2f}".translate(swap) for value in values]


def said(table, severity):
    return {
        (one.code, one.column) for one in check_table(table) if one.severity is Severity(severity)
    }


def advice(table, code):
    (found,) = (one for one in check_table(table) if one.code == code)
    return found.text()


@pytest.mark.parametrize(
    ("thousands", "decimal", "separator"),
    [
        (",", ".", ","), (".", ",", ";"), ("'", ".", ","), ("\u2019", ".", "\t"), (" ", ",", ";"),
        ("\u202f", ",", ";"), ("", ",", ";"), ("", ",", "|"), ("", ".", ";"),
    ],
)  # fmt: skip
def test_numbers_with_marks_are_numbers(path, thousands, decimal, separator):
    amounts = grouped(AMOUNTS, thousands, decimal)
    write(path, ["id", "amount", "flag"], amounts, ["a", "b"], separator=separator)
    table = read_table(path)
    np.testing.assert_array_equal(table.frame["amount"], AMOUNTS)
    assert table.kinds["amount"] is Kind.CONTINUOUS
    assert not said(table, "warning")
    # What was found out is said.
    assert (("format", "") in said(table, "note")) == (separator != ",")
    assert (("number-marks", "amount") in said(table, "note")) == (
        (thousands, decimal) != ("", ".")
    )


def test_whole_numbers_stay_whole_and_gaps_stay_gaps(path):
    write(path, ["id", "n", "m"], ["1,234,567", "-12", "0"], ["1,234,567", "", "5"])
    frame = read_table(path).frame
    assert frame["n"].dtype == "int64"
    assert frame["n"].tolist()[:3] == [1234567, -12, 0]
    np.testing.assert_array_equal(frame["m"][:3], [1234567, np.nan, 5])


def test_what_may_be_thousands_or_decimals_is_not_guessed(path):
    write(path, ["id", "x"], ["1,234", "5,678", "998"])
    table = read_table(path)
    assert table.frame["x"].tolist()[:3] == ["1,234", "5,678", "998"]
    text = advice(table, "ambiguous-numbers")
    assert "column 'x'" in text
    assert "1,234: 1234 or 1.234" in text
    assert "csv.decimal" in text
    assert said(table, "warning") == {("ambiguous-numbers", "x")}
    for decimal, values in ((".", [1234, 5678, 998]), (",", [1.234, 5.678, 998])):
        stated = read_table(path, csv={"decimal": decimal})
        assert stated.frame["x"].tolist()[:3] == values
        assert not said(stated, "warning")
    assert read_table(path, csv={"thousands": ","}).frame["x"].tolist()[:2] == [1234, 5678]


def test_another_column_of_the_file_settles_it_and_is_named(path):
    write(path, ["id", "x", "y"], ["1,234", "5,678"], ["0.5", "1.25"])
    table = read_table(path)
    assert table.frame["x"].tolist()[:2] == [1234, 5678]
    assert "as column 'y' says" in advice(table, "number-marks")
    write(path, ["id", "x", "y"], ["1.234", "5.678"], ["0,5", "1,25"], separator=";")
    assert read_table(path).frame["x"].tolist()[:2] == [1234, 5678]


def test_a_point_in_a_file_with_semicolons_may_be_for_thousands(path):
    write(path, ["id", "x"], ["1.234", "5.678"], separator=";")
    table = read_table(path)
    assert table.frame["x"].tolist()[:2] == [1.234, 5.678]
    assert "read with a decimal point" in advice(table, "ambiguous-numbers")
    stated = read_table(path, csv=CsvFormat(decimal=","))
    assert stated.frame["x"].tolist()[:2] == [1234, 5678]
    # In a file with commas the point is the decimal mark, and nobody is asked.
    write(path, ["id", "x"], ["1.234", "5.678"])
    assert not check_table(read_table(path))


def test_a_stated_mark_that_does_not_fit_is_a_warning(path):
    write(path, ["id", "x"], ["1,234.50", "1,000.25"])
    table = read_table(path, csv={"decimal": ","})
    assert table.frame["x"].tolist()[:2] == [1234.5, 1000.25]
    assert "though csv.decimal is ','" in advice(table, "number-marks")


def test_columns_that_contradict_each_other_settle_nothing(path):
    write(path, ["id", "x", "y", "z"], ["1,5", "2,5"], ["1.5", "2.5"], ["1,234", "2,345"],
          separator=";")  # fmt: skip
    table = read_table(path)
    assert table.frame[["x", "y"]].iloc[0].tolist() == [1.5, 1.5]
    assert said(table, "warning") == {("ambiguous-numbers", "z")}


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (["12 kg", "13 kg", "14.5 kg", "15 kg", "16 kg", "17 kg", "18 kg"], "units"),
        (["$1,200", "$900", "$35.5", "$1", "$2", "$3", "$4"], "units"),
        (["1.5", "2.5", "?", "3.5"], "numbers-as-text"),
        (["31/12/99", "01/02/98"], "dates"),
        (["20240131", "20231201"], "dates"),
        (["0123", "0456", "789"], "leading-zeros"),
        (["-999", "1.5", "2.5", "3.0"], "sentinel"),
        (["5", "5"], "constant"),
        (["yes", "Yes", "no"], "level-variants"),
        (["a", "a ", "b"], "level-variants"),
        (["Z\u00fcrich", "Zu\u0308rich", "Bern"], "level-variants"),
        ([f"{i} Main Street" for i in range(N)], "near-unique"),
    ],
)
def test_suspicious_columns_are_warned_of(path, cells, code):
    write(path, ["id", "x"], cells)
    (found,) = (one for one in check_table(read_table(path)) if one.severity == "warning")
    assert (found.code, found.column) == (code, "x")
    assert found.advice
    assert "x" in found.text()


def test_ordinary_columns_are_not_warned_of(path):
    for cells in (
        ["True", "False"], ["yes", "no"], ["0", "1"], ["a", "b", "c"], ["1.5", "2.5", "-3", "99"],
        ["-1", "0", "1"], ["1e3", "2e-5"], ["3-4", "5-6"], ["030 123456", "040 98765"],
        ["1.2.3", "1.2.4"],
    ):  # fmt: skip
        write(path, ["id", "x"], cells)
        assert not said(read_table(path), "warning"), cells


def test_a_stated_kind_says_that_the_owner_has_looked(path):
    write(path, ["id", "x"], [f"2024-01-{i + 1:02}" for i in range(N)])
    table = read_table(path, kinds={"x": "categorical"})
    assert not check_table(table, stated={"x"})
    assert check_table(table)


def test_dates_are_days_on_request(path):
    days = pd.date_range("1999-12-25", periods=N, freq="17D")
    forms = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d"]
    columns = [days.strftime(form).tolist() for form in forms]
    times = [f"{day:%Y-%m-%d}T06:00:00+00:00" for day in days]
    header = ["id", "iso", "german", "american", "slashes", "time"]
    write(path, header, *columns, times)
    plain = read_table(path)
    assert said(plain, "warning") == {("dates", name) for name in header[1:]}
    (iso,) = (one for one in check_table(plain) if one.column == "iso")
    assert "csv.dates='days'" in iso.advice
    table = read_table(path, csv={"dates": "days"})
    expected = days.to_numpy().astype("datetime64[D]").astype(int)
    for name in header[1:5]:
        np.testing.assert_array_equal(table.frame[name], expected)
    np.testing.assert_array_equal(table.frame["time"], expected + 0.25)
    assert not said(table, "warning")


def test_day_or_month_first_is_stated_where_it_cannot_be_seen(path):
    write(path, ["id", "x"], ["01/02/2024", "03/04/2024", ""])
    unsure = read_table(path, csv={"dates": "days"})
    assert unsure.frame["x"].iloc[0] == "01/02/2024"
    assert "days-day-first" in advice(unsure, "dates")
    for key, day in (("days-day-first", "2024-02-01"), ("days-month-first", "2024-01-02")):
        table = read_table(path, csv={"dates": key})
        assert table.frame["x"].iloc[0] == (pd.Timestamp(day) - pd.Timestamp(0)).days
        assert np.isnan(table.frame["x"].iloc[2])


def test_days_that_no_calendar_has_stay_text(path):
    write(path, ["id", "x"], ["2023-02-28", "2023-02-30"])
    table = read_table(path, csv={"dates": "days"})
    assert table.frame["x"].iloc[0] == "2023-02-28"
    assert ("no-dates", "x") in said(table, "warning")


def test_points_in_time_of_parquet_are_days_on_request(tmp_path):
    times = pd.to_datetime(["1970-01-02", None, "1970-01-11T12:00"], format="ISO8601")
    pd.DataFrame({"t": times}, pd.Index([5, 6, 7], name="id")).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", csv={"dates": "days"})
    np.testing.assert_array_equal(table.frame["t"], [1, np.nan, 10.5])
    assert read_table(tmp_path / "t.parquet").kinds["t"] is Kind.DATE  # most methods refuse these


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_unicode_encodings_are_found_out(tmp_path, encoding, suffix):
    path = write(tmp_path / "t.csv", ["id", "stadt"], ["Zürich", "Bern", "Øst"], encoding=encoding)
    if suffix == "csv.gz":
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    table = read_table(path)
    assert table.ids.name == "id"
    assert table.frame["stadt"].tolist()[:3] == ["Zürich", "Bern", "Øst"]
    assert not said(table, "warning")
    assert (("format", "") in said(table, "note")) == (not encoding.startswith("utf-8"))


def test_one_byte_encodings_are_a_guess_that_is_said(path):
    write(path, ["id", "stadt"], ["Zürich", "Bern"], encoding="latin-1")
    table = read_table(path)
    assert table.frame["stadt"].tolist()[:2] == ["Zürich", "Bern"]
    assert "csv.encoding='cp1252'" in advice(table, "encoding")
    assert "Zürich" in advice(table, "encoding")
    assert not check_table(read_table(path, csv={"encoding": "latin-1"}))
    with pytest.raises(DataError, match="cannot be read as CSV"):
        read_table(path, csv={"encoding": "utf-8"})


def test_lines_that_two_separators_split_are_warned_of(path):
    write(path, ["id;a,b"], ["1,5;2"])
    path.write_text("id;a,b\nk1;2,5\nk2;3,5\n")
    assert "csv.separator" in advice(read_table(path), "separator")
    assert read_table(path, csv={"separator": "semicolon"}).columns == ["a,b"]


def test_a_file_that_cannot_be_split_says_how_it_was_tried(path):
    path.write_text("id;x\n1;2;3\n4;5;6\n")
    with pytest.raises(DataError, match="0 columns besides the sample ID"):
        read_table(path)
    path.write_text("id,x\n1,2\n4,5,6\n")
    with pytest.raises(DataError, match=r"split at ',' into 2 columns; if.*state csv\.separator"):
        read_table(path)


def test_labels_are_read_in_the_same_way(path):
    write(path, ["id", "y"], ["1.234,5", "2,25"], separator=";")
    assert read_labels(path).tolist()[:2] == [1234.5, 2.25]
    write(path, ["id", "y"], ["1.234", "2.345"], separator=";")
    with pytest.warns(DataWarning, match=r"column 'y'.*csv\.decimal"):
        assert read_labels(path).iloc[0] == 1.234
    assert read_labels(path, csv={"decimal": ","}).iloc[0] == 1234


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"seperator": ";"}, r"unknown key 'csv\.seperator'; there are csv\.separator"),
        ({"separator": ";;"}, r"csv\.separator = ';;'; expected one character"),
        ({"separator": "a"}, "no letter"),
        ({"decimal": ";"}, r"csv\.decimal = ';'; expected '\.' or ','"),
        ({"thousands": "_"}, r"csv\.thousands = '_'; expected one of none, space"),
        ({"encoding": "utf-9"}, r"csv\.encoding = 'utf-9' is unknown"),
        ({"dates": "yes"}, r"csv\.dates = 'yes'; expected one of days"),
        ({"decimal": ",", "separator": "comma"}, "csv.decimal and csv.separator are both ','"),
        ({"decimal": ",", "thousands": ","}, "csv.decimal and csv.thousands are both ','"),
    ],
)
def test_formats_that_cannot_be_are_refused(path, given, why):
    with pytest.raises(ConfigError, match=why):
        CsvFormat.of(given)


def test_keys_of_a_node_config():
    config = {"csv.separator": "tab", "csv.thousands": "space", "csv.dates": "days"}
    stated = CsvFormat("\t", thousands=" ", dates="days")
    assert CsvFormat.of_node_config({"party": "bank", **config}) == stated


@pytest.mark.slow
def test_half_a_million_rows_and_two_thousand_columns(tmp_path):
    """Bounds on processor time a few times what a free machine needs (3 s and 2.5 s)."""
    rng = np.random.default_rng(1)
    n = 500_000
    ends = [f"{k};{'ab'[k % 2]};{k // 100},{k % 100:02}\n" for k in range(5000)]
    rows = (f"{i};{ends[k]}" for i, k in enumerate(rng.integers(0, 5000, n).tolist(), 1))
    (tmp_path / "long.csv").write_text("id;x;city;paid\n" + "".join(rows))
    wide = pd.DataFrame(rng.integers(0, 10**6, (60, 2000)) / 64)
    wide.rename(columns="x{}".format).rename_axis("id").to_csv(tmp_path / "wide.csv")
    for name, shape in (("long", (n, 3)), ("wide", (60, 2000))):
        started = time.process_time()
        table = read_table(tmp_path / f"{name}.csv")
        found = check_table(table)
        assert time.process_time() - started < 20
        assert table.frame.shape == shape
        assert all(one.severity == "note" for one in found)
    assert read_table(tmp_path / "long.csv", columns=["paid"]).kinds["paid"] is Kind.CONTINUOUS


@pytest.mark.parametrize("separator", [",", ";"])
def test_long_texts_and_whole_numbers_beyond_64_bits_are_read(path, separator):
    numbers = [str(10**25 + i) for i in range(N)]
    large = [str(2**63 + i) for i in range(N)]
    write(path, ["id", "n", "u", "note"], numbers, large, ["x" * 140_000, "y"], separator=separator)
    frame = read_table(path).frame
    assert frame["n"].tolist() == [float(n) for n in numbers]
    assert frame["u"].tolist() == [int(n) for n in large]
    assert frame["note"].str.len().tolist() == [140_000, 1] * (N // 2)


def test_unsigned_numbers_of_64_bits_keep_their_sign():
    column = pd.array([1, 2**63 + 7], dtype="UInt64")
    for values in (column, column.astype(object)):
        assert Table.of(pd.DataFrame({"n": values})).frame["n"].tolist() == [1, 2**63 + 7]


def test_the_csv_module_keeps_its_limit_for_others(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "long.csv").write_text(f"id,x,note\na,1,{'n' * 300_000}\nb,2,\n")
    read = read_table(tmp_path / "long.csv")
    assert len(read.frame["note"].iloc[0]) == 300_000
    assert csv.field_size_limit() == before == 131_072


@pytest.mark.parametrize(("marks", "known"), [(["", "NA"], 190), (["null"], 195), ([], 200)])
def test_texts_for_missing_cells_are_warned_of_and_can_be_stated(tmp_path, marks, known):
    """A CSV file has none of these; a Parquet file has them as levels, unless it is told."""
    town = ["Ulm", "None", "Bonn, W"] * 66 + ["Ulm"] * 2
    for k, mark in enumerate(marks):
        town[5 * k : 5 * k + 5] = [mark] * 5
    frame = pd.DataFrame({"town": town, "x": range(200)}, [f"c{k}" for k in range(200)])
    frame.rename_axis("id").to_parquet(tmp_path / "bank.parquet")
    read = read_table(tmp_path / "bank.parquet")
    assert read.frame["town"].notna().all()
    found = [one for one in check_table(read) if one.code == "missing-text"]
    assert len(found) == bool(marks)
    if marks:
        assert f"{200 - known} cells are empty or mark missing" in found[0].seen
    looked = check_table(read, stated={"town": "categorical"})
    assert "missing-text" not in [one.code for one in looked]
    config = dict(found[0].mend) if marks else {}
    again = read_table(tmp_path / "bank.parquet", cleaning=Cleaning.of_node_config(config))
    assert again.frame["town"].notna().sum() == known
    assert "missing-text" not in [one.code for one in check_table(again)]
