import gzip
import hashlib
import pathlib
import re

import pytest

from simulations.__main__ import main
from simulations.data import DATA_SETS, DATA_VARIABLE, Sources, read_paper
from simulations.registry import STUDIES

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def test_list_names_every_study_on_a_line(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)
    assert "Tables 3-5" in lines[0]


@pytest.mark.parametrize("arguments", [["--help"], ["fknn", "--help"]])
def test_help_helps(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fknn" in text
    if arguments[0] == "fknn":
        assert all(word in text for word in ("--quick", DATA_VARIABLE, "results/fknn", "status"))


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["fknn", "--seeds", "0"]])
def test_wrong_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_absent_data_set_says_which_file_whence_and_where_to_put_it(tmp_path, capsys):
    missing = tmp_path / "nowhere"
    assert main(["fknn", "--data", str(missing), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    expected = (str(missing), "motor_hetero_guest.csv", "FATE", "simulations data", "--data")
    assert all(word in error for word in (*expected, DATA_VARIABLE))
    assert not (tmp_path / "out").exists()


def test_data_sets_are_in_the_repository_s_folder_or_where_the_user_says(tmp_path, monkeypatch):
    assert Sources.find().data == ROOT / "data"
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "a"))
    assert Sources.find().data == tmp_path / "a"
    assert Sources.find(tmp_path / "given").data == tmp_path / "given"


def test_data_says_what_is_here_and_what_is_missing(tmp_path, capsys, monkeypatch):
    content = b"url, shares\nu, 5\n"
    for name in ("hapt/Test", "news", "letter"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "letter" / "letter_recognition.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "news" / "OnlineNewsPopularity.csv").write_bytes(content)
    (tmp_path / "hapt" / "Test" / "X_test.txt").write_bytes(content)
    assert main(["data", "--data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    of = dict(zip(DATA_SETS, said.split("\n\n")[1:], strict=False))
    assert "here     letter/letter_recognition.csv, with other content than" in of["letter"]
    assert "here     news/OnlineNewsPopularity.csv" in of["news"]
    assert "missing" not in of["news"]
    assert "here     hapt/Test/X_test.txt" in of["hapt"]
    assert "missing  hapt/Train/X_train.txt" in of["hapt"]
    assert f"to do    in {tmp_path}: mkdir -p bank; tr" in of["bank"]
    assert all("licence  " in text and "from     " in text for text in of.values())
    assert said.rstrip().splitlines()[-1].startswith(f"2 of {len(DATA_SETS)} are here")
    known = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(DATA_SETS["letter"].files, "letter/letter_recognition.csv", known)
    main(["data", "--data", str(tmp_path)])
    assert "letter_recognition.csv, content as in the documented" in capsys.readouterr().out


def test_data_sets_name_studies_and_only_these_take_a_folder_of_data(capsys):
    readers = {study for of in DATA_SETS.values() for study in of.studies}
    assert readers < set(STUDIES)
    for study in STUDIES:
        with pytest.raises(SystemExit):
            main([study, "--help"])
        assert ("--data DIR" in capsys.readouterr().out) == (study in readers)


def test_every_file_that_a_study_reads_is_of_a_known_data_set():
    asked = re.compile(r"\.path\(f?\"([^\"]+)\"\)")
    folders = (ROOT / "simulations", ROOT / "benchmarks")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    read = {file for text in texts for file in asked.findall(text)}
    known = [file for of in DATA_SETS.values() for file in of.files]
    assert len(read) > 7
    for file in read:
        pattern = re.sub(r"{[^}]*}", ".+", file.replace(".", r"\."))
        assert any(re.fullmatch(pattern, name) for name in known), file


@pytest.mark.parametrize("folder", sorted((ROOT / "simulations").glob("*/paper")), ids=str)
def test_numbers_of_a_paper_are_as_its_readme_counts_them(folder):
    described = re.findall(r"^\| (\w+)\.csv \| (\d+) \|", (folder / "README.md").read_text(), re.M)
    assert {name for name, _ in described} == {path.stem for path in folder.glob("*.csv")}
    for name, rows in described:
        assert len(read_paper(folder.parent.name, name)) == int(rows)


def test_nothing_but_ci_looks_outside_of_the_repository():
    """CI alone has data sets beside the clone; see `.ci/run`."""
    outside = "/".join(("..", "shared"))
    folders = ("apps", "benchmarks", "docs", "notebooks", "simulations", "tests", ".ci")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.*"))
    text = (path for path in [*paths, ROOT / ".ci" / "run"] if path.suffix != ".pyc")
    naming = [path for path in text if path.is_file() and outside.encode() in path.read_bytes()]
    assert naming == [ROOT / ".ci" / "run"]
