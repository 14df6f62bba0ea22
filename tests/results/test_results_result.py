import json
import math

import numpy as np
import pandas as pd
import pytest

from flwr_vertical.errors import ConfigError, DataError
from flwr_vertical.result import Result
from flwr_vertical.results import storage
from flwr_vertical.results.ledger import Message


@pytest.fixture
def result() -> Result:
    index = pd.Index(["s1", "s2", "s3"], name="id")
    coefficients = pd.DataFrame(
        {"estimate": [1.5, -2.0], "std_error": [0.1, 0.2]},
        index=pd.MultiIndex.from_tuples([("a", "x"), ("b", "y")], names=["party", "variable"]),
    )
    result = Result(
        "FKNN",
        settings={"k": np.int64(5), "tol": 1e-6, "grid": {"w": [1, 2]}, "limit": math.inf},
        metrics={"rmse": 0.5, "undefined": math.nan},
        history=[{"round": 1, "loss": np.float64(2.0)}, {"round": 2, "loss": math.nan}],
        tables={
            "a": pd.DataFrame({"x": [1.0, 2.0, 3.0], "kind": ["u", "v", None]}, index=index),
            "b/../é": pd.DataFrame({"y": pd.Categorical(["p", "q", "p"])}, index=index),
        },
        coefficients=coefficients,
        labels=pd.Series([0.0, 1.0, np.nan], index=index, name="speed"),
        mask=np.array([[False, True], [False, False], [True, False]]),
        party_metrics={"a": {"rmse": 0.4}},
        notes=["stopped early"],
        disclosure=[("server", "sums")],
        figures={"Own <figure>": "<svg></svg>", "Dots": b"\x89PNG"},
    )
    result.ledger.add(Message(1, "NA", "call", "a", 1, 2, 3, 0.5))
    result.ledger.spend("a", 0.5, "ranks")
    return result


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_only_the_strategy_is_required(tmp_path):
    result = Result("VFEM")
    assert result.parties == []
    assert "VFEM" in str(result)
    assert Result.load(result.save(tmp_path / "r")).strategy == "VFEM"


def test_text_shows_strategy_metrics_and_cost(result, tmp_path):
    assert result.parties == ["a", "b/../é"]
    text = str(result)
    for part in ("FKNN", "rmse 0.5", "stopped early", "1 messages", "a 3 x 2", "epsilon a 0.5"):
        assert part in text
    assert len(repr(result)) < 200
    result.save(tmp_path / "r")
    assert str(tmp_path / "r") in str(result)


def test_saved_result_comes_back(result, tmp_path):
    again = Result.load(result.save(tmp_path / "deep" / "r"))
    assert again.settings == {"k": 5, "tol": 1e-6, "grid": {"w": [1, 2]}, "limit": math.inf}
    assert again.metrics["rmse"] == 0.5
    assert math.isnan(again.metrics["undefined"])
    assert again.history[0] == {"round": 1, "loss": 2.0}
    assert math.isnan(again.history[1]["loss"])
    assert list(again.tables) == list(result.tables)
    for party, table in result.tables.items():
        pd.testing.assert_frame_equal(again.tables[party], table)
    pd.testing.assert_frame_equal(again.coefficients, result.coefficients)
    pd.testing.assert_series_equal(again.labels, result.labels)
    np.testing.assert_array_equal(again.mask, result.mask)
    assert again.ledger.totals() == result.ledger.totals()
    assert again.ledger.summary().index.tolist() == ["NA"]
    for name in ("parties", "party_metrics", "notes", "disclosure", "figures"):
        assert getattr(again, name) == getattr(result, name)


def test_names_of_coefficients_come_back_as_they_are(tmp_path):
    """Sodium is NA, years are numbers; values come back to the last digit."""
    names = [("NA", "NA"), ("NA", "2024"), ("lab", "null"), ("lab", "007")]
    index = pd.MultiIndex.from_tuples(names, names=["party", "variable"])
    values = {"estimate": [1 / 3, -2e-301, math.nan, 5.0], "std_error": [math.nan] * 4}
    made = pd.DataFrame(values, index)
    for frame in (made, made.iloc[[1, 3]]):
        again = Result.load(Result("X", coefficients=frame).save(tmp_path / "r")).coefficients
        pd.testing.assert_frame_equal(again, frame, check_exact=True)


def test_files_have_safe_names_and_valid_json(result, tmp_path):
    folder = result.save(tmp_path / "r")
    found = names(folder)
    assert {"result.json", "ledger.csv", "coefficients.csv", "tables/a.parquet"} <= set(found)
    assert all(name.isascii() and ".." not in name for name in found)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    index = json.loads((folder / "result.json").read_text(), parse_constant=refuse)
    assert index["ledger"]["bytes_up"] == 2


def test_names_differing_in_case_or_cleaned_characters_stay_apart(tmp_path):
    table = pd.DataFrame({"x": [1.0]})
    tables = {name: table * i for i, name in enumerate(["bank", "Bank", "b a", "b_a", "***", ""])}
    again = Result.load(Result("X", tables=tables).save(tmp_path / "r"))
    files = names(tmp_path / "r" / "tables")
    assert len({name.lower() for name in files}) == len(tables)
    for name, expected in tables.items():
        pd.testing.assert_frame_equal(again.tables[name], expected)


def test_saving_again_replaces_ours_and_keeps_files_of_others(result, tmp_path):
    folder = result.save(tmp_path / "r")
    (folder / "mine.txt").write_text("keep")
    (folder / "tables" / "mine.csv").write_text("keep")
    Result("VFEM", tables={"c": pd.DataFrame({"z": [1.0]})}).save(folder)
    assert names(folder) == [
        "ledger.csv", "mine.txt", "privacy.csv", "result.json", "tables/c.parquet",
        "tables/mine.csv",
    ]  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
def test_a_failing_write_leaves_nothing_or_the_old_result(result, tmp_path, monkeypatch, again):
    folder = tmp_path / "r"
    if again:
        Result("old").save(folder)
    before = names(tmp_path)

    def fail(self, path, **_):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", fail)
    with pytest.raises(OSError, match="disk full"):
        result.save(folder)
    assert names(tmp_path) == before
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")]
    if again:
        assert Result.load(folder).strategy == "old"


def test_foreign_folders_and_files_are_refused(result, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        result.save(tmp_path)
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / "result.json").write_text('{"format": "something else"}')
    with pytest.raises(ConfigError, match=r"result\.json"):
        result.save(tmp_path)
    with pytest.raises(ConfigError, match="it is a file"):
        result.save(tmp_path / "result.json")
    assert names(tmp_path) == ["result.json"]


def test_an_edited_index_cannot_delete_outside_the_folder(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("keep")
    folder = Result("X").save(tmp_path / "r")
    index = json.loads((folder / "result.json").read_text())
    index["files"]["coefficients"] = "../victim.txt"
    (folder / "result.json").write_text(json.dumps(index))
    Result("X").save(folder)
    assert victim.exists()


def test_loading_something_else_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no saved result"):
        Result.load(tmp_path)
    folder = Result("X").save(tmp_path / "r")
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text.replace('"version": 1', '"version": 99'))
    with pytest.raises(DataError, match="update"):
        Result.load(folder)


def test_a_column_of_mixed_types_is_an_error_that_names_the_party(tmp_path):
    table = pd.DataFrame({"x": pd.Series([1, "two", object()], dtype=object)})
    with pytest.raises(DataError, match="bank"):
        Result("X", tables={"bank": table}).save(tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_names_other_than_text_survive(tmp_path):
    table = pd.DataFrame({1: [1.0], 2: [2.0]}, index=[7])
    Result("X").report(tmp_path / "r")  # which may share the folder, before and after
    again = Result.load(Result("X", tables={"a": table}).save(tmp_path / "r"))
    again.report(tmp_path / "r")
    assert {"report.html", "result.json"} <= set(names(tmp_path / "r"))
    np.testing.assert_array_equal(again.tables["a"].to_numpy(), table.to_numpy())


def test_safe_name_of_plain_names_is_the_name():
    assert storage.safe_name("guest_1") == "guest_1"
    assert storage.safe_name("a/b").startswith("a_b-")
