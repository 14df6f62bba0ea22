"""Folders of Parquet files: one table, or an error that names the file."""

import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.sources.folders import folder_digest
from flwr_vertical.sources.reading import read_source


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "x": [1.5, None, 3.0, 4.0],
            "n": [1, 2, 3, 4],
            "level": pd.Categorical(["a", "b", None, "a"]),
            "day": pd.to_datetime(
                ["1970-01-02", None, "1970-01-03 12:00", "1970-01-01"], format="ISO8601"
            ),
            "flag": [True, False, True, True],
        },
        index=pd.Index(["p", "q", "r", "s"], name="firm"),
    )


def in_parts(folder, frame, *names):
    for k, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.iloc[2 * k : 2 * k + 2].to_parquet(path)
    return folder


def test_files_are_read_as_one_table(tmp_path, frame):
    folder = in_parts(tmp_path, frame, "b/1.parquet", "b/2.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / ".b.parquet").write_text("being written")
    table = read_source(folder, dates="days")
    assert table.frame.index.tolist() == ["p", "q", "r", "s"]
    assert table.frame.index.name == "firm"
    assert table.frame["x"].tolist()[2:] == [3.0, 4.0]
    assert table.frame["n"].dtype == "int64"
    assert table.frame["level"].tolist()[:2] == ["a", "b"]
    assert table.frame["day"].tolist()[2] == 2.5
    assert table.frame["flag"].dtype == "bool"


def test_only_columns_that_are_needed_are_read(tmp_path, frame):
    folder = in_parts(tmp_path, frame, "1.parquet", "2.parquet")
    table = read_source(folder, id_column="firm", columns=["flag", "x"])  # no warning of dates
    assert table.columns == ["flag", "x"]
    with pytest.raises(DataError, match="has no column 'y'"):
        read_source(folder, id_column="firm", columns=["y"])


def test_folders_with_a_key_in_their_name_make_a_column(tmp_path, frame):
    folder = in_parts(tmp_path, frame[["x"]], "year=2024/1.parquet", "year=2025/1.parquet")
    table = read_source(folder)
    assert table.frame["year"].tolist() == [2024, 2024, 2025, 2025]
    assert table.columns == ["x", "year"]


def test_whole_numbers_with_gaps_in_one_file_go_together(tmp_path, frame):
    (tmp_path / "t").mkdir()
    frame[["n"]].iloc[:2].to_parquet(tmp_path / "t" / "1.parquet")
    frame[["n"]].iloc[2:].astype(float).replace(3.0, None).to_parquet(tmp_path / "t" / "2.parquet")
    found = read_source(tmp_path / "t").frame["n"]
    assert found.tolist()[:2] == [1.0, 2.0]
    assert found.isna().tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.drop(columns="x"), r"2\.parquet lacks 'x', compared with .*1\.parquet"),
        (lambda f: f.assign(more=1.0), r"2\.parquet has 'more' besides"),
        (lambda f: f.astype({"x": str}), r"2\.parquet: column 'x' is of type"),
        (lambda f: f.set_axis(["p", "z"]).rename_axis("firm"), "1 row whose sample ID repeats"),
        (lambda f: f.assign(x=[[1.0], [2.0]]), r"2\.parquet: column 'x' is of type list"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, frame, change, says):
    frame = frame[["x", "n"]]
    folder = in_parts(tmp_path, frame, "1.parquet")
    change(frame.iloc[2:]).to_parquet(folder / "2.parquet")
    with pytest.raises(DataError, match=says):
        read_source(folder)


def test_files_that_cannot_be_read_are_named(tmp_path, frame):
    folder = in_parts(tmp_path, frame[["x"]], "1.parquet")
    (folder / "2.parquet").write_text("id,x\n1,2\n")
    with pytest.raises(DataError, match=r"2\.parquet cannot be read as PARQUET"):
        read_source(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="a folder without Parquet files"):
        read_source(tmp_path / "empty")
    with pytest.raises(ConfigError, match="is a folder, and 'table', 'query'"):
        read_source(folder, table="x")
    with pytest.raises(ConfigError, match="is a file, and 'table', 'query'"):
        read_source(folder / "1.parquet", query="SELECT 1")


def test_the_digest_follows_names_and_contents(tmp_path, frame):
    folder = in_parts(tmp_path, frame, "1.parquet", "2.parquet")
    before = folder_digest(folder)
    assert folder_digest(folder) == before
    frame.iloc[:1].to_parquet(folder / "2.parquet")
    assert folder_digest(folder) != before
