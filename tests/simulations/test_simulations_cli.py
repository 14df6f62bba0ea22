import pytest

from simulations.__main__ import main
from simulations.data import DATA_VARIABLE, TABLES_VARIABLE, Sources
from simulations.registry import STUDIES


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.delenv(TABLES_VARIABLE, raising=False)


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


def test_absent_data_folder_says_where_to_set_it(tmp_path, capsys):
    missing = tmp_path / "nowhere"
    assert main(["fknn", "--data", str(missing), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in (str(missing), "--data", DATA_VARIABLE))
    assert not (tmp_path / "out").exists()


def test_absent_data_set_says_which_file(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "tables").mkdir()
    assert main(["fknn", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "o")]) == 2
    assert "motor_hetero_guest.csv" in capsys.readouterr().err


def test_absent_tables_say_where_to_set_them(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    assert main(["fknn", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "o")]) == 2
    assert TABLES_VARIABLE in capsys.readouterr().err


def test_folders_come_from_the_environment(tmp_path, monkeypatch):
    for name in ("a", "b", "given"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "a"))
    monkeypatch.setenv(TABLES_VARIABLE, str(tmp_path / "b"))
    assert Sources.find() == Sources(tmp_path / "a", tmp_path / "b")
    assert Sources.find(tmp_path / "given").data == tmp_path / "given"
