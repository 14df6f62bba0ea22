"""`flwr-vertical align` as a user types it."""

import pandas as pd
import pytest

from apps.cli.main import main


@pytest.fixture
def files(tmp_path):
    left = pd.DataFrame({"first": ["Ann", "Bo", "Cy"], "last": ["x", "y", "z"], "u": [1, 2, 3]})
    right = pd.DataFrame({"first": ["ann", "Cy"], "last": ["x", "z"], "v": [1.5, 2.5]})
    for name, frame in (("bank", left), ("court", right)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return [str(tmp_path / "bank.csv"), str(tmp_path / "court.csv")]


@pytest.mark.parametrize("alignment", ["private-id", "plain"])
def test_it_counts_patterns(files, capsys, alignment):
    arguments = ["--id-column", "first,last", "--alignment", alignment]
    assert main(["align", *files, *arguments]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[:4]] in (
        [["bank", "court", "samples"], ["yes", "-", "2"], ["yes", "yes", "1"], ["-", "yes", "1"]],
        [["bank", "court", "samples"], ["yes", "-", "2"], ["-", "yes", "1"], ["yes", "yes", "1"]],
    )
    assert main(["align", *files, *arguments, "--normalise", "casefold"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[-1] for line in lines[1:3]) == ["1", "2"]
    assert main(["align", *files, *arguments, "--rows", "intersection"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["yes", "yes", "1"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--id-column", "nope"], "no column 'nope'"),
    ],
)
def test_errors_are_short_and_exit_with_one(files, capsys, arguments, why):
    assert main(["align", *files, *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert why in shown


@pytest.mark.parametrize(
    ("arguments", "why"), [(["--alignment", "magic"], "private-id"), (["--rows", "all"], "union")]
)
def test_values_that_there_are_not_are_one_line_and_exit_with_two(files, capsys, arguments, why):
    with pytest.raises(SystemExit) as caught:
        main(["align", *files, *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert why in shown
    assert shown.count("\n") == 1


def test_one_file_or_equal_names(files, tmp_path, capsys):
    assert main(["align", files[0]]) == 1
    assert "at least two files" in capsys.readouterr().err
    assert main(["align", files[0], files[0]]) == 1
    assert "names must differ" in capsys.readouterr().err


def test_a_short_file_beside_a_long_one(tmp_path, capsys):
    """On one machine nobody guesses IDs, however many more the other file has."""
    for name, count in (("few", 2), ("many", 150)):
        frame = pd.DataFrame({"id": [f"c{i}" for i in range(count)], name: 1.0})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    assert main(["align", str(tmp_path / "few.csv"), str(tmp_path / "many.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["-", "yes", "148"]
